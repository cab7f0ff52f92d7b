"""The health watch calls the worker off once, for a reason and with its exit code."""

import queue
import threading

import pytest
from answering_engine import AnsweringEngine

from schemas.settings import Settings
from worker import health
from worker.health import EXIT_ENGINE_LOST, EXIT_MEMORY_LIMIT, EXIT_OVERDUE, HealthWatch

WAIT_S = 5


@pytest.fixture(autouse=True)
def quick(monkeypatch) -> None:
    monkeypatch.setattr(health, "LOOK_S", 0.01)
    monkeypatch.setattr(health, "MEMORY_LOOK_S", 0.0)


@pytest.fixture
def engine() -> AnsweringEngine:
    return AnsweringEngine(lambda _: None)


@pytest.fixture
def stopping() -> threading.Event:
    return threading.Event()


@pytest.fixture
def watch(engine, stopping):
    """Starts a watch; returns what it leaves with."""
    left: queue.SimpleQueue[int] = queue.SimpleQueue()
    started = []

    def start(**given) -> queue.SimpleQueue[int]:
        started.append(HealthWatch(Settings(engine="stub", **given), engine, stopping, left.put))
        started[0].start()
        return left

    yield start
    for each in started:
        each.stop()
        each._thread.join(WAIT_S)
        assert not each._thread.is_alive()
    assert left.empty()


def test_a_lost_engine(watch, engine) -> None:
    left = watch()
    engine.lost = True
    assert left.get(timeout=WAIT_S) == EXIT_ENGINE_LOST == 70


def test_memory_over_the_limit(watch, monkeypatch, caplog) -> None:
    used = [1 * health.GIB, 3 * health.GIB]
    monkeypatch.setattr(health, "resident_bytes", lambda: used.pop(0) if len(used) > 1 else used[0])
    left = watch(memory_limit_gib=2)
    assert left.get(timeout=WAIT_S) == EXIT_MEMORY_LIMIT == 75
    assert "3.00 GiB" in caplog.text
    assert "GLEANER_MEMORY_LIMIT_GIB is 2" in caplog.text


def test_without_a_limit_nobody_looks(watch, engine, monkeypatch) -> None:
    monkeypatch.setattr(health, "resident_bytes", lambda: pytest.fail("looked"))
    left = watch()
    engine.lost = True
    assert left.get(timeout=WAIT_S) == EXIT_ENGINE_LOST


def test_where_memory_cant_be_read_the_limit_is_off_and_said_so(watch, engine, monkeypatch, caplog) -> None:
    monkeypatch.setattr(health, "memory_is_readable", lambda: False)
    left = watch(memory_limit_gib=0.001)
    assert "is off" in caplog.text
    engine.lost = True
    assert left.get(timeout=WAIT_S) == EXIT_ENGINE_LOST


def test_a_stop_that_hangs_is_ended(watch, stopping, monkeypatch) -> None:
    exits: queue.SimpleQueue[int] = queue.SimpleQueue()
    monkeypatch.setattr(health.os, "_exit", exits.put)
    watch(shutdown_s=0.05)
    stopping.set()
    assert exits.get(timeout=WAIT_S) == EXIT_OVERDUE


def test_a_stop_in_time_is_left_alone(watch, stopping, monkeypatch) -> None:
    monkeypatch.setattr(health.os, "_exit", lambda _: pytest.fail("ended"))
    watch(shutdown_s=WAIT_S)
    stopping.set()
