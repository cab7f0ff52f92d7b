"""The decoder over random label schemas and tokenizers of three kinds."""

import json
import random
import sys
from typing import Any

import pytest
from decoder_reference import Reference, label_of
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from label_schemas import Part, objects, written

from schemas.automaton import END, Automaton, automaton_of
from schemas.grammar import grammar_of
from schemas.label_spec import load_label_spec
from schemas.normalise import normalise

pytest.importorskip("tokenizers", reason="comes with the engine: make setup ENGINE=vllm")

import numpy as np
from tokenizers_made import KINDS, demo_tokenizer, made

from worker.decoder.tables import Unspellable, compile_tables
from worker.decoder.vocabulary import load_vocabulary, prepare, token_bytes
from worker.decoder.walk import Walk

EXAMPLES = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)
kinds = pytest.mark.parametrize("kind", KINDS)
#: Tokens where none is spared.
PLENTY = 10_000


def automaton(part: Part) -> Automaton:
    return automaton_of(grammar_of(normalise(part.schema).json_schema).schema)


def walk(part: Part, kind: str) -> Walk:
    _, vocabulary, _, end = made(kind)
    try:
        return Walk(compile_tables(automaton(part), vocabulary, [end]), vocabulary)
    except Unspellable:
        # The third kind has no bytes to fall back on.
        assume(False)
        raise


def generate(steps: Walk, end: int, budget: int, choose: Any) -> list[int]:
    """The tokens of a label, chosen among what is admitted; it ends by itself."""
    place, tokens = steps.start, []
    for left in range(budget, 0, -1):
        token = choose(np.flatnonzero(steps.allowed(place, left)).tolist(), place)
        if token == end:
            return tokens
        tokens.append(token)
        following = steps.step(place, token)
        assert following is not None
        place = following
    raise AssertionError("the budget is used up, and the label has no end")


def check(part: Part, tokens: list[int], kind: str) -> None:
    tokenizer, _, found, _ = made(kind)
    label = label_of(tokens, found)
    assert list(label) == [name for name in part.schema["properties"] if name in label]
    checker = Draft202012Validator.FORMAT_CHECKER
    Draft202012Validator(part.schema, format_checker=checker).validate(label)
    part.annotation.model_validate(label)
    text = b"".join(found[token] for token in tokens).decode()
    first = next(token for token, data in found.items() if data == b"a")
    assert tokenizer.decode([first, *tokens]) == "a" + text
    assert text == text.strip()


@kinds
@EXAMPLES
@given(part=objects(), more=st.integers(0, 60), seed=st.integers(0, 2**32))
def test_what_is_admitted_is_valid(kind, part, more, seed):
    steps = walk(part, kind)
    chance = random.Random(seed)
    tokens = generate(steps, made(kind)[3], steps.tables.needed + more, lambda admitted, _: chance.choice(admitted))
    check(part, tokens, kind)


@kinds
@EXAMPLES
@given(part=objects())
def test_the_worst_model_ends_within_every_budget_from_the_smallest_up(kind, part, deep):
    steps = walk(part, kind)
    _, _, found, end = made(kind)
    reference = Reference(automaton(part), found, end, made(kind)[1].fill)

    def worst(admitted: list[int], place: Any) -> int:
        # What leads farthest from the end; of those the shortest, which leads least far in the label.
        def rank(token: int) -> tuple[int, int]:
            following = steps.step(place, token)
            assert following is not None
            return -_to_end(steps, following), len(found.get(token, b""))

        return end if admitted == [end] else min((token for token in admitted if token != end), key=rank)

    assert steps.tables.needed == reference.to_end(reference.start)
    for budget in range(steps.tables.needed, steps.tables.needed + 8):
        check(part, generate(steps, end, budget, worst), kind)


def _to_end(steps: Walk, place: Any) -> int:
    return next((left for left in range(1, PLENTY) if steps.allowed(place, left).any()), PLENTY)


@kinds
@EXAMPLES
@given(data=st.data())
def test_every_valid_label_is_admitted(kind, data):
    part = data.draw(objects())
    text = written(data.draw(part.values), data.draw(st.booleans())).encode()
    steps = walk(part, kind)
    _, _, found, end = made(kind)
    by_text = {}
    for token, token_text in found.items():
        by_text.setdefault(token_text, token)
    longest = data.draw(st.booleans())
    lengths = sorted({len(token_text) for token_text in by_text}, reverse=longest)
    place, position = steps.start, 0
    while position < len(text):
        pieces = (text[position : position + length] for length in lengths if position + length <= len(text))
        piece = next((piece for piece in pieces if piece in by_text), None)
        assume(piece is not None)  # a character that the tokenizer has no token for
        assert steps.allowed(place, PLENTY)[by_text[piece]], (text[:position], piece)
        place = steps.step(place, by_text[piece])
        position += len(piece)
    assert np.flatnonzero(steps.allowed(place, PLENTY)).tolist() == [end]


@kinds
@settings(EXAMPLES, max_examples=25)
@given(part=objects(), more=st.integers(0, 20), seed=st.integers(0, 2**32))
def test_masks_equal_the_slow_reference(kind, part, more, seed, deep):
    steps = walk(part, kind)
    _, vocabulary, found, end = made(kind)
    reference = Reference(automaton(part), found, end, vocabulary.fill)
    chance = random.Random(seed)
    place, spot = steps.start, reference.start
    for left in range(steps.tables.needed + more, 0, -1):
        expected = np.zeros(vocabulary.size, bool)
        expected[list(reference.allowed(spot, left))] = True
        allowed = steps.allowed(place, left)
        assert np.array_equal(allowed, expected)
        token = chance.choice(np.flatnonzero(allowed).tolist())
        if token == end:
            return
        place, spot = steps.step(place, token), reference.read(spot, found[token])
    raise AssertionError("no end")


@pytest.fixture(scope="module")
def deep():
    """The reference goes as deep as a label has states."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(20_000)
    yield
    sys.setrecursionlimit(limit)


def reader(schema: dict[str, Any]) -> Any:
    """What tells whether a text is a value of a schema."""
    built = automaton_of({"type": "object", "properties": {"a": schema}, "required": ["a"]})
    reads = Reference(built, {}, 0, 1)

    def admits(value: str | bytes) -> bool:
        data = value.encode() if isinstance(value, str) else value
        spot = reads.read(reads.start, b'{"a":' + data + b"}")
        return spot is not None and spot.state == END

    return admits


def test_integers_are_those_within_their_limits():
    for low, high in [(0, 0), (-3, 12), (7, 7), (98, 1203), (-250, -9), (10, 19)]:
        admits = reader({"type": "integer", "minimum": low, "maximum": high})
        for value in range(low - 300, high + 300):
            assert admits(str(value)) == (low <= value <= high), (low, high, value)


def test_numbers_are_those_within_their_limits():
    for limits in [
        {"minimum": 0, "maximum": 1},
        {"exclusiveMinimum": -0.25, "exclusiveMaximum": 0.3},
        {"minimum": 1.5},
        {"exclusiveMaximum": 0},
        {"minimum": -12.75, "maximum": -3},
        {},
    ]:
        schema = {"type": "number", **limits}
        validator = Draft202012Validator(schema)
        admits = reader(schema)
        for thousandths in range(-14_000, 14_000, 50):
            for text in (f"{thousandths / 1000}", f"{thousandths / 1000:.3f}", f"{thousandths / 1000}e-3"):
                admitted = admits(text)
                if text.startswith("-") and float(text) == 0:
                    assert not admitted or validator.is_valid(float(text)), (limits, text)
                elif "e" not in text:
                    assert admitted == validator.is_valid(float(text)), (limits, text)
                elif admitted:
                    assert validator.is_valid(float(text)), (limits, text)


def test_exponents_stay_within_doubles():
    admits = reader({"type": "number"})
    for text in ("3e23", "1.5E+290", "2e-07", "1e0", "-4.25e5"):
        assert admits(text), text
    for text in ("1e291", "1e1000", "1e", "1e+", "01", ".5", "5.", "1234567890123456"):
        assert not admits(text), text


def test_dates_are_those_of_the_calendar():
    admits = reader({"type": "string", "format": "date"})
    checker = Draft202012Validator({"format": "date"}, format_checker=Draft202012Validator.FORMAT_CHECKER)
    for year in (0, 1, 1900, 1999, 2000, 2023, 2024, 9999):
        for month in range(14):
            for day in (0, 1, 28, 29, 30, 31, 32):
                text = f"{year:04}-{month:02}-{day:02}"
                assert admits(f'"{text}"') == checker.is_valid(text), text


def test_text_is_what_can_be_stored():
    admits = reader({"type": "string", "maxLength": 2})
    for inside in (b"", b"\\u0001", b"\\uD83D\\ude00x", "😀x".encode(), b"\\/\\\\", b"\\ud7ff", b"\\uE000", b"\x7f"):
        assert admits(b'"' + inside + b'"'), inside
    for inside in (
        b"\\u0000",
        b"\\ud83d",
        b"\\ude00",
        b"\\ud83dx",
        b"\n",
        b"\xed\xa0\x80",
        b"\xc0\xaf",
        b"abc",
        b"\\x",
    ):
        assert not admits(b'"' + inside + b'"'), inside


def test_what_is_kept_on_disk_is_what_was_prepared(tmp_path):
    tokenizer, vocabulary, _, end = made("byte level")
    part = automaton_of({"type": "object", "properties": {"a": {"type": "string", "maxLength": 3}}})
    (first, file), (second, _) = load_vocabulary(tokenizer, tmp_path), load_vocabulary(tokenizer, tmp_path)
    assert list(tmp_path.iterdir()) == [file]
    for loaded in (first, second):
        assert loaded.tokens.texts == vocabulary.tokens.texts
        for field in ("chars", "modes", "close"):
            assert np.array_equal(getattr(loaded, field), getattr(vocabulary, field))
        assert np.array_equal(compile_tables(part, loaded, [end]).token, compile_tables(part, vocabulary, [end]).token)


@pytest.mark.parametrize("name", ["packages", "papers"])
def test_the_label_schemas_that_come_along_are_in_the_subset(name):
    spec, _ = load_label_spec(name)
    tokenizer = demo_tokenizer()
    vocabulary = prepare(token_bytes(tokenizer), tokenizer.get_vocab_size())
    end = tokenizer.token_to_id("<|im_end|>")
    tables = compile_tables(automaton_of(json.loads(spec.schema_text)), vocabulary, [end])
    assert tables.needed < 60
    # Of 256 MiB for 50 label schemas.
    assert sum(array.nbytes for array in vars(tables).values() if isinstance(array, np.ndarray)) < 5 * 2**20
