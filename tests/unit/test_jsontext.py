import json
import sys

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from schemas.jsontext import (
    MAX_NESTING,
    NonFiniteNumber,
    any_string,
    dump_json,
    make_storable,
    map_strings,
    nested_over,
    parse_json,
    parse_record,
    storable,
)

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


@given(JSON_VALUES)
def test_what_is_dumped_parses_to_the_same_value(value):
    assert parse_json(dump_json(value)) == value


def test_dump_is_compact_and_keeps_scripts_and_order():
    assert dump_json({"b": "å中😀", "a": [1, None]}) == '{"b":"å中😀","a":[1,null]}'


@pytest.mark.parametrize("value", [float("nan"), float("inf"), [{"a": float("-inf")}]])
def test_dump_refuses_numbers_that_are_not_finite(value):
    with pytest.raises(ValueError, match="JSON compliant"):
        dump_json(value)


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", '{"a": [NaN]}', "1e400", "-1e400", "[1.5E999]"])
def test_parse_refuses_numbers_that_are_not_finite(text):
    with pytest.raises(NonFiniteNumber):
        parse_json(text)


@pytest.mark.parametrize("text", ["1e308", "1e-400", "-0.0", "1.7976931348623157e308"])
def test_parse_takes_every_double(text):
    assert parse_json(text) == float(text)


def test_parse_refuses_an_integer_of_5000_digits_with_a_value_error():
    with pytest.raises(ValueError, match="4300 digits"):
        parse_json("1" * 5000)


@pytest.mark.parametrize("opening", ["[", '{"a":'])
@pytest.mark.parametrize("levels", [MAX_NESTING + 1, 900, 100_000])
@pytest.mark.parametrize("parse", [parse_json, parse_record])
def test_deep_nesting_is_a_value_error_and_no_recursion_error(opening, levels, parse):
    closing = "]" if opening == "[" else "}"
    with pytest.raises(ValueError, match="nested too deeply"):
        parse(opening * levels + "1" + closing * levels)


def test_what_parses_can_be_walked_and_dumped_from_a_deep_stack():
    value = parse_json("[" * MAX_NESTING + '"x"' + "]" * MAX_NESTING)

    def deeper(frames):
        if frames:
            return deeper(frames - 1)
        return any_string(value, lambda text: text == "x"), dump_json(map_strings(value, str.upper))

    found, text = deeper(sys.getrecursionlimit() // 3)
    assert found
    assert '"X"' in text


@pytest.mark.parametrize("text", ["", "{", "{'a': 1}", "[1,]", "1 2", '"\t"', "\ufeff{}", '{"a": 01}', "nul"])
def test_text_that_is_no_json_is_a_value_error(text):
    with pytest.raises(ValueError, match=r"."):
        parse_json(text)


@pytest.mark.parametrize("text", ['{"a":1,"a":2}', '[{"a":1,"b":0,"a":1}]', ' {"a":1,"a":2}'])
def test_a_record_with_two_values_for_one_key_is_a_value_error(text):
    with pytest.raises(ValueError, match="'a' stands twice"):
        parse_record(text)


@given(
    JSON_VALUES,
    st.sampled_from([("", ""), ("[", "]"), ('{"a":', "}"), ('[{"[{":', "}]"), (" [", "]\n")]),
    st.integers(0, MAX_NESTING + 3),
    st.sampled_from(["", " ", "x", "]", "{", "NaN", "1e999", '"{{[[']),
    st.integers(0),
)
def test_a_record_is_what_the_parser_of_json_makes_of_it(value, brackets, levels, put_in, place):
    opening, closing = brackets
    text = opening * levels + json.dumps(value) + closing * levels
    place %= len(text) + 1
    text = text[:place] + put_in + text[place:]
    found = outcome(parse_record, text)
    assume("stands twice" not in found[1])
    assert found == outcome(parse_json, text)


def outcome(parse, text):
    """The value as text, in which 1 and 1.0 and True differ, or the error."""
    try:
        return None, repr(parse(text))
    except ValueError as error:
        return type(error), str(error)


def test_bytes_that_are_not_utf_8_are_a_value_error():
    with pytest.raises(ValueError, match="utf-8"):
        parse_json(b'{"a": "\xff"}')


@pytest.mark.parametrize(
    ("value", "levels", "over"),
    [
        (1, 0, False),
        ([], 0, True),
        ([], 1, False),
        ([[1]], 1, True),
        ({"a": {"b": []}}, 3, False),
        ({"a": [{}]}, 2, True),
    ],
)
def test_nesting_counts_objects_and_lists(value, levels, over):
    assert nested_over(value, levels) is over


@pytest.mark.parametrize("text", ["", "plain", "å中😀", "\\u0000", "\\ud800", "\ufffd", "\x01\x7f\u2028", "\U0010ffff"])
def test_text_that_postgres_takes_is_left_alone(text):
    assert storable(text)
    assert make_storable(text) == text


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ("a\x00b", "a\ufffdb"),
        ("\ud800", "\ufffd"),
        ("x\udfffy", "x\ufffdy"),
        ("\x00\x00", "\ufffd\ufffd"),
    ],
)
def test_nul_and_half_pairs_are_replaced_one_for_one(text, stored):
    assert not storable(text)
    assert make_storable(text) == stored


@given(st.text(st.characters(codec=None, categories=None)))
def test_what_is_made_storable_is_storable_and_keeps_its_length(text):
    stored = make_storable(text)
    assert storable(stored)
    assert len(stored) == len(text)
    assert stored.encode("utf-8").decode("utf-8") == stored


def test_escaped_pair_is_one_character_and_survives():
    value = parse_json('"\\ud83d\\ude00"')
    assert value == "😀"
    assert storable(value)


@pytest.mark.parametrize("escape", ["\\ud83d", "\\ude00\\ud83d", "\\u0000", "a\\udc00b"])
def test_escapes_that_postgres_refuses_are_found_after_parsing(escape):
    assert not storable(parse_json(f'"{escape}"'))


def test_six_characters_that_spell_an_escape_are_kept():
    # A document that talks about JSON: the backslash is escaped, so there is no NUL.
    value = parse_json('{"a": "\\\\u0000"}')
    assert value == {"a": "\\u0000"}
    assert map_strings(value, make_storable) == value
    assert json.loads(dump_json(value)) == value


def test_strings_are_changed_everywhere_keys_too_and_nothing_else():
    value = {"a\x00": ["b\x00", {"c": "\x00"}, 1, None, True, 1.5]}
    assert map_strings(value, make_storable) == {"a\ufffd": ["b\ufffd", {"c": "\ufffd"}, 1, None, True, 1.5]}
    assert value == {"a\x00": ["b\x00", {"c": "\x00"}, 1, None, True, 1.5]}


@pytest.mark.parametrize("value", ["\x00", ["\x00"], {"\x00": 1}, {"a": [{"b": "x\x00"}]}])
def test_a_bad_string_is_found_at_any_depth(value):
    assert any_string(value, lambda text: not storable(text))


@pytest.mark.parametrize("value", [None, 1, 1.5, True, [], {}, {"a": ["b"]}])
def test_no_bad_string_is_found_where_there_is_none(value):
    assert not any_string(value, lambda text: not storable(text))
