"""Conditions compare as people mean them, and a sample is drawn evenly and alike each time."""

import pytest

from producer.selection import Condition, Selection, draw
from schemas.errors import UsageError


@pytest.mark.parametrize(
    ("condition", "record", "holds"),
    [
        ("year>=2015", {"year": 2015}, True),
        ("year>=2015", {"year": "2016"}, True),
        ("year>=2015", {"year": 999}, False),
        ("year != 2015", {"year": 2015.0}, False),
        ("field=physics", {"field": "physics"}, True),
        ("field = physics", {"field": ["maths", "physics"]}, True),
        ("field!=physics", {}, False),
        ("ok=true", {"ok": True}, True),
        ("name<b", {"name": "a"}, True),
        ("a=b=c", {"a": "b=c"}, True),
        ("empty=", {"empty": ""}, True),
        ("date>2020-01-01", {"date": "2020-02-01"}, True),
    ],
)
def test_a_condition(condition: str, record: dict, holds: bool) -> None:
    assert Condition.parse(condition).holds(record) is holds


@pytest.mark.parametrize("text", ["year", "", "=5"])
def test_what_is_no_condition_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--where"):
        Condition.parse(text)


def test_every_condition_must_hold() -> None:
    selection = Selection((Condition.parse("a>1"), Condition.parse("b=x")))
    assert selection.matches({"a": 2, "b": "x"})
    assert not selection.matches({"a": 2, "b": "y"})


def test_a_sample_is_even_and_the_same_for_the_same_seed() -> None:
    assert draw(range(1000), 50, 7) == draw(range(1000), 50, 7)
    assert draw(range(1000), 50, 7) != draw(range(1000), 50, 8)
    assert draw(range(20), 50, 7) == frozenset(range(20))
    drawn = [position for seed in range(200) for position in draw(range(100), 10, seed)]
    assert len(drawn) == 2000
    thirds = [sum(first <= position < first + 25 for position in drawn) for first in (0, 25, 50, 75)]
    assert all(400 < count < 600 for count in thirds)
