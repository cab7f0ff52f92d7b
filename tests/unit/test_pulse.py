"""How long an engine has been silent, and what counts as an answer."""

from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from answering_engine import AnsweringEngine, generation

from worker import pulse
from worker.engine.base import Prompt, Request
from worker.pulse import PulsedEngine

REQUEST = Request(Prompt(1), None, 1, 0.0, 1.0, 0)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The time, to be set."""
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(pulse.time, "monotonic", lambda: clock.now)
    return clock


@pytest.fixture
def inner() -> AnsweringEngine:
    """Leaves requests open."""
    return AnsweringEngine(lambda _: None)


def test_silence_is_counted_from_the_first_open_request(clock, inner) -> None:
    engine = PulsedEngine(inner)
    clock.now += 1000
    assert engine.silent_s == 0
    engine.submit(REQUEST)
    clock.now += 5
    engine.submit(REQUEST)
    clock.now += 2
    assert engine.silent_s == 7
    assert engine.open_requests == 2


@pytest.mark.parametrize(
    "end",
    [
        lambda future: future.set_result(generation("{}")),
        lambda future: future.set_exception(RuntimeError("no")),
        Future.cancel,
    ],
    ids=["answered", "failed", "cancelled"],
)
def test_the_end_of_a_request_breaks_the_silence(clock, inner, end) -> None:
    engine = PulsedEngine(inner)
    engine.submit(REQUEST)
    engine.submit(REQUEST)
    clock.now += 10
    end(inner.futures[0])
    assert (engine.silent_s, engine.open_requests, engine.answered_at) == (0, 1, clock.now)
    clock.now += 3
    assert engine.silent_s == 3
    end(inner.futures[1])
    clock.now += 3
    assert (engine.silent_s, engine.open_requests) == (0, 0)


def test_a_request_that_is_refused_at_once_is_not_open(inner) -> None:
    engine = PulsedEngine(inner)
    inner.submit = None  # type: ignore[assignment]
    with pytest.raises(TypeError):
        engine.submit(REQUEST)
    assert engine.open_requests == 0


def test_an_engine_that_is_given_up_is_lost(inner) -> None:
    engine = PulsedEngine(inner)
    assert not engine.lost
    inner.lost = True
    assert engine.lost
    inner.lost = False
    engine.give_up()
    assert engine.lost
