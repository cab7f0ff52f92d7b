"""Rate, time left and stalls of a watched job."""

import pytest

from producer.watching import RATE_WINDOW_S, STALL_S, Reading, RowRate
from schemas.outcomes import Outcome


def reading(state: str = "running", pending: int = 60, rate: float = 2.0, still_s: float = 0.0) -> Reading:
    return Reading(state, "m", {"total": 100, "pending": pending, **dict.fromkeys(Outcome, 1)}, rate, still_s)


def test_the_rate_is_that_of_the_last_seconds() -> None:
    rate = RowRate()
    assert rate.add(0.0, 0) == 0
    assert rate.add(10.0, 100) == 10
    for second in range(11, 11 + int(RATE_WINDOW_S) * 2):
        latest = rate.add(float(second), 100 + (second - 10))
    assert latest == pytest.approx(1.0)


def test_stillness_is_counted_from_the_last_new_row() -> None:
    rate = RowRate()
    for now, rows in [(0.0, 5), (10.0, 5), (20.0, 6), (70.0, 6)]:
        rate.add(now, rows)
    assert rate.moved_at == 20.0


def test_time_left_needs_a_rate() -> None:
    assert reading().eta_s == 30
    assert reading(rate=0.0).eta_s is None


@pytest.mark.parametrize(
    ("state", "still_s", "stalled", "ended"),
    [
        ("running", STALL_S, True, False),
        ("queued", STALL_S, True, False),
        ("running", STALL_S - 1, False, False),
        ("paused", STALL_S, False, False),
        ("done", STALL_S, False, True),
        ("cancelled", STALL_S, False, True),
    ],
)
def test_a_job_that_should_move_and_does_not_is_stalled(state: str, still_s: float, stalled: bool, ended: bool) -> None:
    assert (reading(state, still_s=still_s).stalled, reading(state, still_s=still_s).ended) == (stalled, ended)


@pytest.mark.parametrize(
    ("state", "rate", "still_s", "measuring"),
    [
        ("running", 0.0, 0.0, True),
        ("queued", 0.0, RATE_WINDOW_S - 1, True),
        ("running", 0.0, RATE_WINDOW_S, False),
        ("running", 2.0, 0.0, False),
        ("done", 0.0, 0.0, False),
    ],
)
def test_a_rate_of_zero_is_said_only_when_it_is_known(state: str, rate: float, still_s: float, measuring: bool) -> None:
    assert reading(state, rate=rate, still_s=still_s).measuring is measuring
