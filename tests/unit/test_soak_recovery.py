"""When the work counts as going on after a fault."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise

from ops.soak.recovery import ChunkReading, Reading, Recovery, alone
from ops.soak.report import by_kind

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def _chunk(rows: int, *, attempt: int = 1, state: str = "running", renewed: int = 0) -> ChunkReading:
    return ChunkReading(state, attempt, "w1@host/1", NOON + timedelta(seconds=renewed), rows)


def _reading(at: float, waiting: int = 5, **chunks: ChunkReading) -> Reading:
    return Reading(at, {(1, "abcdef".index(name)): chunk for name, chunk in chunks.items()}, waiting)


def _struck(over_at: float | None = 10.0) -> Recovery:
    return Recovery("worker: SIGKILL", "w1", 10.0, {(1, 0): 1}, over_at)


def _look(fault: Recovery, *readings: Reading) -> float | None:
    for before, now in pairwise(readings):
        fault.look(before, now)
    return fault.seconds


def test_a_chunk_that_hangs_keeps_the_fault_open() -> None:
    others = [_reading(at, a=_chunk(3), b=_chunk(at), c=_chunk(0, attempt=at)) for at in (11, 12, 13)]
    assert _look(_struck(), *others) is None


def test_a_chunk_claimed_anew_ends_it() -> None:
    fault = _struck()
    assert _look(fault, _reading(11, a=_chunk(3), b=_chunk(1)), _reading(12, a=_chunk(3, attempt=2), b=_chunk(2))) == 2
    assert fault.hanging == {}


def test_a_chunk_that_is_free_finished_or_renewed_hangs_no_more() -> None:
    before = _reading(11, a=_chunk(3), b=_chunk(1))
    for after in (
        _reading(12, a=_chunk(3, state="queued"), b=_chunk(2), c=_chunk(0)),
        _reading(12, a=_chunk(3, state="done"), b=_chunk(2), c=_chunk(0)),
        _reading(12, a=_chunk(3, renewed=5), b=_chunk(2), c=_chunk(0)),
    ):
        assert _look(_struck(), before, after) == 2


def test_a_claim_is_wanted_while_chunks_wait() -> None:
    rows = (_reading(11, b=_chunk(1)), _reading(12, b=_chunk(2)))
    assert _look(_struck(), *rows) is None
    assert _look(_struck(), *(Reading(one.at, one.chunks, 0) for one in rows)) == 2


def test_rows_are_wanted() -> None:
    assert _look(_struck(), _reading(11), _reading(12, c=_chunk(0)), _reading(13, c=_chunk(0))) is None


def test_nothing_left_to_do_ends_it() -> None:
    assert _look(_struck(), _reading(11, 0), _reading(12, 0)) == 2


def test_what_was_read_before_the_fault_was_over_does_not_count() -> None:
    before, after = _reading(9.9, a=_chunk(3)), _reading(10.2, a=_chunk(9, attempt=2), b=_chunk(0))
    assert _look(_struck(), before, after) is None
    assert _look(_struck(None), _reading(11, a=_chunk(3)), _reading(12, a=_chunk(9, attempt=2))) is None


def test_faults_that_overlap_are_told_apart() -> None:
    first = Recovery("a", "", 10, over_at=11, recovered_at=15)
    second = Recovery("a", "", 14, over_at=14, recovered_at=16)
    third = Recovery("a", "", 20, over_at=20, recovered_at=21)
    pending = Recovery("a", "", 30, over_at=30)
    every = [first, second, third, pending]
    assert [alone(fault, every) for fault in every] == [False, False, True, False]
    figures = by_kind(every)["a"]
    assert (figures.times, figures.median_s, figures.worst_s, figures.open) == (4, 2, 4, 1)
    assert (figures.alone, figures.alone_worst_s) == (1, 1)
