"""What a measurement counts, and that it ends."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from answering_engine import AnsweringEngine, generation

from schemas.errors import UsageError
from schemas.label_spec import load_label_spec
from schemas.outcomes import EngineLost, RequestFailed
from schemas.settings import Settings
from worker.bench import Bench
from worker.engine.plain_label import plain_label_text
from worker.engine.stub import StubEngine
from worker.measure import Measure
from worker.sample import read_sample
from worker.specs import prepared

SPEC, _ = load_label_spec("packages")
GOOD = plain_label_text(SPEC.schema_text)
SETTINGS = Settings(engine="stub")


def documents(count: int) -> list[dict[str, Any]]:
    return [{"ordinal": n, "external_id": str(n), "text": f"text {n}", "meta": {}} for n in range(count)]


def measure(engine, count: int = 8, **given):
    given = {"in_flight": 3, "seconds": 5, **given}
    return Measure(engine, prepared(SPEC, SETTINGS, engine)).run(documents(count), **given)


def test_outcomes_and_tokens_are_counted() -> None:
    answers: Iterator[Any] = iter([GOOD, generation("{", "length"), "banana", RequestFailed("x"), *[GOOD] * 4])
    figures = measure(AnsweringEngine(lambda _: next(answers)))
    assert figures.outcomes == {"ok": 5, "truncated": 1, "invalid": 1, "failed": 1}
    assert figures.documents == 8
    assert figures.prompt_tokens == 7 * 10
    assert figures.cached_share == 0.5
    assert figures.as_json()["outcomes"]["ok"] == 5


def test_what_cant_be_prompted_counts_too() -> None:
    engine = AnsweringEngine(lambda _: GOOD)
    made = Measure(engine, prepared(SPEC, SETTINGS, engine)).run(
        [{**document, "text": " "} for document in documents(3)], in_flight=2, seconds=5
    )
    assert made.outcomes == {"rejected": 3}


def test_no_more_are_in_flight_than_asked_for() -> None:
    engine = AnsweringEngine(lambda _: None)
    measure(engine, in_flight=3, seconds=0.05)
    assert len(engine.requests) == 3


def test_what_the_clock_cuts_off_is_cancelled_and_counts_nowhere() -> None:
    engine = AnsweringEngine(lambda _: GOOD if len(engine.requests) == 1 else None)
    figures = measure(engine, seconds=0.05)
    assert figures.documents == 1
    assert [future.cancelled() for future in engine.futures] == [False, True, True, True]


def test_without_a_grammar_there_is_a_limit_and_no_check() -> None:
    engine = AnsweringEngine(lambda _: "banana")
    figures = measure(engine, grammar=False)
    assert figures.outcomes == {"stop": 8}
    assert {request.schema_text for request in engine.requests} == {None}
    assert {request.max_tokens for request in engine.requests} == {SPEC.reserved_output_tokens}


def test_a_lost_engine_ends_it() -> None:
    engine = AnsweringEngine(lambda _: None)
    engine.lost = True
    with pytest.raises(EngineLost):
        measure(engine)


def test_bench_doubles_what_is_in_flight_and_never_repeats_a_document_but_when_warm() -> None:
    engine = StubEngine(SETTINGS)
    engine.start()
    bench = Bench(engine, prepared(SPEC, SETTINGS, engine), documents(5), seconds=5, most_in_flight=6)
    seen: list[list[str]] = []
    run = bench._measure.run
    bench._measure.run = lambda made, **given: (  # type: ignore[method-assign]
        seen.append([document["text"] for document in made]) or run(made, **given)
    )
    points = list(bench.run())
    engine.close()
    assert [(p.grammar, p.prefix_cache, p.figures.in_flight) for p in points] == [
        (True, "cold", 1), (True, "cold", 2), (True, "cold", 4), (True, "warm", 4),
        (False, "cold", 1), (False, "cold", 2), (False, "cold", 4),
    ]  # fmt: skip
    assert len(points) == bench.points
    assert seen.pop(4) == seen[3]
    texts = [text for made in seen for text in made]
    assert len(set(texts)) == len(texts)
    assert json.dumps([point.as_json() for point in points])


def test_a_sample_is_what_the_file_begins_with(write_corpus) -> None:
    path = write_corpus(
        [{"id": 7, "abstract": "one", "title": "t"}, "broken", {"id": 8}, {"abstract": " "}, {"abstract": "two"}, "[]"]
    )
    assert read_sample(path, 9, "abstract", "id") == [
        {"ordinal": 0, "external_id": "7", "text": "one", "meta": {"title": "t"}},
        {"ordinal": 1, "external_id": "", "text": "two", "meta": {}},
    ]
    assert len(read_sample(path, 1, "abstract", "id")) == 1


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("none.jsonl", None, "No such file"),
        ("c.jsonl", b'{"abstract": "x"}\n', "--text-field"),
        ("c.jsonl.gz", b"no gzip", "can't read"),
        ("cut.jsonl.gz", b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03", "can't read"),
    ],
)
def test_a_sample_that_cant_be_had_is_wrong_use(tmp_path, name, content, said) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError, match=said):
        read_sample(tmp_path / name, 1, "text", "id")
