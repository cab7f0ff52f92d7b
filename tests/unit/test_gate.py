"""Who is at the engine: many together, or one alone, and nobody waits for ever."""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest

from worker.gate import Gate

WAIT_S = 5


class Visitor:
    """Goes in by a thread of its own and stays until it is told to leave."""

    def __init__(self, enter: Callable[..., AbstractContextManager[None]], look: Callable[[], None]) -> None:
        self.asked = threading.Event()
        self.inside = threading.Event()
        self.leave = threading.Event()
        self.error: BaseException | None = None
        self._look = look
        self._enter = enter
        self.thread = threading.Thread(target=self._visit, daemon=True)
        self.thread.start()

    def _asked(self) -> None:
        self._look()
        self.asked.set()

    def _visit(self) -> None:
        try:
            with self._enter(self._asked):
                self.inside.set()
                self.leave.wait(WAIT_S)
        except RuntimeError as error:
            self.error = error

    def go(self) -> None:
        self.leave.set()
        self.thread.join(WAIT_S)
        assert not self.thread.is_alive()


Visit = Callable[..., Visitor]


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def visit(gate: Gate) -> Iterator[Visit]:
    visitors: list[Visitor] = []

    def start(how: str, look: Callable[[], None] = lambda: None) -> Visitor:
        visitors.append(Visitor(getattr(gate, how), look))
        assert visitors[-1].asked.wait(WAIT_S) or visitors[-1].error
        return visitors[-1]

    yield start
    for visitor in visitors:
        visitor.go()


def test_many_are_inside_together(visit: Visit) -> None:
    assert all(visit("together").inside.wait(WAIT_S) for _ in range(3))


def test_alone_waits_until_it_is_empty_and_keeps_the_others_out(gate: Gate, visit: Visit) -> None:
    first, second = visit("together"), visit("together")
    assert first.inside.wait(WAIT_S)
    assert second.inside.wait(WAIT_S)
    alone = visit("alone")
    late = visit("together")
    first.go()
    assert not alone.inside.is_set()
    second.go()
    assert alone.inside.wait(WAIT_S)
    assert not late.inside.is_set()
    assert gate._inside == 1
    alone.go()
    assert late.inside.wait(WAIT_S)


def test_two_that_must_be_alone_go_one_after_the_other(visit: Visit) -> None:
    first = visit("alone")
    assert first.inside.wait(WAIT_S)
    second = visit("alone")
    assert not second.inside.is_set()
    first.go()
    assert second.inside.wait(WAIT_S)


@pytest.mark.parametrize("how", ["together", "alone"])
def test_who_need_not_wait_any_longer_lets_the_others_in(visit: Visit, how: str) -> None:
    inside = visit("alone")
    assert inside.inside.wait(WAIT_S)
    called_off = threading.Event()

    def look() -> None:
        if called_off.is_set():
            raise RuntimeError("the worker is shutting down")

    waiting = visit(how, look)
    called_off.set()
    waiting.thread.join(WAIT_S)
    assert str(waiting.error) == "the worker is shutting down"
    assert not waiting.inside.is_set()
    inside.go()
    assert visit("together").inside.wait(WAIT_S)


def test_an_error_inside_leaves_the_gate_open(gate: Gate, visit: Visit) -> None:
    for enter in (gate.alone, gate.together):
        with pytest.raises(ValueError, match="poison"), enter(lambda: None):
            raise ValueError("poison")
    assert visit("alone").inside.wait(WAIT_S)
