"""The health watch calls the worker off once, for a reason and with its exit code."""

import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from answering_engine import AnsweringEngine

from schemas.settings import Settings
from worker import health, queue_watch, vitals
from worker.engine.base import Prompt, Request
from worker.health import (
    EXIT_DEAF,
    EXIT_ENGINE_LOST,
    EXIT_MEMORY_LIMIT,
    EXIT_OVERDUE,
    HealthWatch,
)
from worker.pulse import PulsedEngine
from worker.queue_watch import QueueWatch
from worker.vitals import Vitals

WAIT_S = 5
#: A request that the engine below leaves without an answer.
REQUEST = Request(Prompt(1), None, 1, 0.0, 1.0, 0)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "LOOK_S", 0.01)
    monkeypatch.setattr(health, "MEMORY_LOOK_S", 0.0)
    monkeypatch.setattr(queue_watch, "LOOK_S", 0.01)


class Watched:
    """A watch over an engine that answers nothing, and what it comes to."""

    def __init__(self, **given: Any) -> None:
        settings = Settings(engine="stub", **given)
        self.inner = AnsweringEngine(lambda _: None)
        self.engine = PulsedEngine(self.inner)
        self.stopping = threading.Event()
        self.draining = threading.Event()
        self.left: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.overdue: queue.SimpleQueue[tuple[int, str]] = queue.SimpleQueue()
        self.vitals = Vitals(settings, "w", self.engine, self.stopping, self.draining)
        self.watch = HealthWatch(
            settings, self.vitals, self.engine, self.stopping, self.draining, self.left.put, self._end
        )

    def _end(self, exit_code: int, words: str) -> None:
        self.overdue.put((exit_code, words))

    def consume(self) -> None:
        """As Celery does when it is ready, and the queue's watch with nothing in the queue."""
        self.vitals.consume()
        self.vitals.see_queue(0)


@pytest.fixture
def start() -> Iterator[Callable[..., Watched]]:
    """Starts a watch; at the end it has said nothing that was not asked for."""
    started: list[Watched] = []

    def make(**given: Any) -> Watched:
        started.append(Watched(**{"shutdown_s": 0.01, **given}))
        started[-1].watch.start()
        return started[-1]

    yield make
    for each in started:
        each.stopping.set()
        each.watch._thread.join(WAIT_S)
        assert not each.watch._thread.is_alive()
        assert each.left.empty()


def test_a_lost_engine(start) -> None:
    watched = start()
    watched.inner.lost = True
    assert watched.left.get(timeout=WAIT_S) == EXIT_ENGINE_LOST == 70
    assert watched.stopping.is_set()


def test_an_engine_that_does_not_answer(start, caplog) -> None:
    watched = start(stall_s=0.1)
    watched.engine.submit(REQUEST)
    assert watched.left.get(timeout=WAIT_S) == EXIT_ENGINE_LOST
    assert watched.engine.lost
    assert watched.stopping.is_set()
    assert watched.vitals.as_json()["state"] == "stuck"
    assert "the engine does not answer its requests for 0.1 s (GLEANER_STALL_S)" in caplog.text


def test_an_engine_that_hangs_while_its_chunks_are_finished(start, monkeypatch) -> None:
    monkeypatch.setattr(health, "resident_bytes", lambda: 3 * health.GIB)
    watched = start(stall_s=0.1, memory_limit_gib=2)
    watched.consume()
    assert watched.left.get(timeout=WAIT_S) == EXIT_MEMORY_LIMIT
    watched.engine.submit(REQUEST)
    assert watched.left.get(timeout=WAIT_S) == EXIT_ENGINE_LOST


def test_an_engine_with_nothing_to_do_is_not_silent(start) -> None:
    watched = start(stall_s=0.05)
    watched.engine.submit(REQUEST)
    watched.inner.futures[0].cancel()
    deadline = time.monotonic() + 0.3
    while time.monotonic() < deadline:
        assert watched.vitals.as_json()["state"] == "starting"
        assert watched.left.empty()
        time.sleep(0.01)


def test_messages_that_nobody_takes(start, caplog) -> None:
    watched = start(stall_s=0.1)
    watched.vitals.consume()
    watched.vitals.see_queue(3)
    assert watched.left.get(timeout=WAIT_S) == EXIT_DEAF == 75
    assert watched.stopping.is_set()
    assert "messages wait in the queue and none is taken by this worker (3 of them" in caplog.text


def _never_deaf(watched: Watched, queue: int | None, act: Callable[[], None] = lambda: None) -> None:
    """Several times ``stall_s`` without a word."""
    deadline = time.monotonic() + 0.5
    while time.monotonic() < deadline:
        watched.vitals.see_queue(queue)
        act()
        assert watched.left.empty()
        time.sleep(0.01)


def test_messages_that_are_taken_though_there_is_nothing_to_claim(start) -> None:
    watched = start(stall_s=0.2)
    watched.vitals.consume()

    def take() -> None:
        with watched.vitals.message():
            pass

    _never_deaf(watched, 3, take)


@pytest.mark.parametrize("length", [0, None], ids=["an empty queue", "a broker that is away"])
def test_nothing_to_take(start, length) -> None:
    watched = start(stall_s=0.05)
    watched.vitals.consume()
    _never_deaf(watched, length)


def test_before_it_consumes_a_worker_is_not_deaf(start) -> None:
    _never_deaf(start(stall_s=0.05), 3)


def test_a_worker_that_drains_is_not_deaf(start) -> None:
    watched = start(stall_s=0.05)
    watched.draining.set()
    watched.vitals.consume()
    _never_deaf(watched, 3)


def test_a_worker_with_chunks_in_work_is_not_deaf(start) -> None:
    watched = start(stall_s=0.05)
    watched.vitals.consume()
    with watched.vitals.message():
        _never_deaf(watched, 3)
        # Nobody knows why it does not move, so nothing is ended for it; but it is told.
        assert watched.vitals.as_json()["reason"] == "no chunk gets on"


def test_a_process_that_was_stopped_is_forgiven(start, monkeypatch) -> None:
    watched = Watched(stall_s=10)
    now = [1000.0]
    monkeypatch.setattr(vitals.time, "monotonic", lambda: now[0])
    watched.consume()
    watched.vitals.see_queue(3)
    watched.engine.submit(REQUEST)
    watched.vitals.look()
    now[0] += 3600  # SIGSTOP, and SIGCONT after an hour
    watched.vitals.see_queue(3)
    assert watched.vitals.look() is None
    for _ in range(10):
        now[0] += 1
        watched.vitals.see_queue(3)
        assert watched.vitals.look() is None
    now[0] += 1
    assert watched.vitals.look() is vitals.Stall.ENGINE


def test_the_queue_is_watched(start) -> None:
    watched = start()
    answers: list[Any] = [ConnectionError("away"), 7]
    asked = threading.Event()

    def count() -> int:
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        asked.set()
        return answer

    watch = QueueWatch(count, watched.vitals)
    watch.start()
    assert asked.wait(WAIT_S)
    deadline = time.monotonic() + WAIT_S
    while watched.vitals.queued != 7:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    watch.stop()


def test_an_old_look_at_the_queue_is_not_believed(monkeypatch) -> None:
    watched = Watched()
    watched.vitals.see_queue(3)
    assert watched.vitals.queued == 3
    monkeypatch.setattr(vitals, "QUEUE_BELIEVED_S", 0.0)
    assert watched.vitals.queued is None


def test_memory_over_the_limit(start, monkeypatch, caplog) -> None:
    used = [1 * health.GIB, 3 * health.GIB]
    monkeypatch.setattr(health, "resident_bytes", lambda: used.pop(0) if len(used) > 1 else used[0])
    watched = start(memory_limit_gib=2)
    watched.consume()
    assert watched.left.get(timeout=WAIT_S) == EXIT_MEMORY_LIMIT == 75
    assert watched.draining.is_set()
    assert not watched.stopping.is_set()
    assert "3.00 GiB" in caplog.text
    assert "GLEANER_MEMORY_LIMIT_GIB is 2" in caplog.text


def test_without_a_limit_nobody_looks(start, monkeypatch) -> None:
    monkeypatch.setattr(health, "resident_bytes", lambda: pytest.fail("looked"))
    watched = start()
    watched.consume()
    watched.inner.lost = True
    assert watched.left.get(timeout=WAIT_S) == EXIT_ENGINE_LOST


def test_where_memory_cant_be_read_the_limit_is_off_and_said_so(start, monkeypatch, caplog) -> None:
    monkeypatch.setattr(health, "memory_is_readable", lambda: False)
    watched = start(memory_limit_gib=0.001)
    watched.consume()
    assert "is off" in caplog.text
    watched.inner.lost = True
    assert watched.left.get(timeout=WAIT_S) == EXIT_ENGINE_LOST


def test_a_stop_that_hangs_is_ended(start) -> None:
    watched = start(shutdown_s=0.05)
    watched.stopping.set()
    exit_code, words = watched.overdue.get(timeout=WAIT_S)
    assert exit_code == EXIT_OVERDUE
    assert "GLEANER_SHUTDOWN_S" in words


def test_a_stop_that_hangs_because_of_the_engine_keeps_its_exit_code(start) -> None:
    watched = start(shutdown_s=0.05)
    watched.inner.lost = True
    assert watched.left.get(timeout=WAIT_S) == EXIT_ENGINE_LOST
    assert watched.overdue.get(timeout=WAIT_S)[0] == EXIT_ENGINE_LOST


def test_a_stop_is_given_its_time(start) -> None:
    watched = start(shutdown_s=0.5)
    told = time.monotonic()
    watched.stopping.set()
    watched.overdue.get(timeout=WAIT_S)
    assert time.monotonic() - told >= 0.5
