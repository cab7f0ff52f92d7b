"""What a worker is doing and when it last got anywhere: what its health is judged by."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Any

from schemas.settings import Settings
from worker.pulse import PulsedEngine

#: Seconds between two looks after which the process itself was stopped or starved: such time says nothing about it.
ASLEEP_S = 5.0
#: Seconds for which the length of the queue is believed: some looks at it, and less than a broker's time-outs.
QUEUE_BELIEVED_S = 10.0


class WorkerState(StrEnum):
    """What a worker is doing."""

    STARTING = "starting"  #: the engine loads, no message is taken yet
    IDLE = "idle"  #: nothing to do
    WORKING = "working"  #: chunks in work
    DRAINING = "draining"  #: the chunks in work are finished, no other is claimed
    STOPPING = "stopping"  #: chunks are given back
    STUCK = "stuck"  #: there is something to do, and nothing has moved for GLEANER_STALL_S


class Stall(StrEnum):
    """What does not move."""

    ENGINE = "the engine does not answer its requests"
    CONSUMER = "messages wait in the queue and none is taken"
    CHUNK = "no chunk gets on"


class Vitals:
    """Told what happens in the worker; asked by those who watch it. From any thread."""

    def __init__(
        self,
        settings: Settings,
        worker: str,
        engine: PulsedEngine,
        stopping: threading.Event,
        draining: threading.Event,
    ) -> None:
        """:param stopping: chunks are being given back. :param draining: no further chunk is claimed."""
        self._settings = settings
        self._worker = worker
        self._engine = engine
        self._stopping = stopping
        self._draining = draining
        self._lock = threading.Lock()
        self._consuming = False
        self._in_work = 0
        self._queued: int | None = None
        self._queue_seen_at = 0.0
        self._stall: Stall | None = None
        #: When a message was taken or done with, by time.monotonic().
        self._moved_at = time.monotonic()
        #: When there was nothing to do, or nobody to look: no stall began before.
        self._idle_at = self._looked_at = time.monotonic()

    # -- told -----------------------------------------------------------------------------------------

    def consume(self) -> None:
        """Messages are taken from now on."""
        self._consuming = True

    @contextmanager
    def message(self) -> Iterator[None]:
        """A message that was taken, while it is in work: whether there is a chunk to claim or not, that is progress."""
        self._move(+1)
        try:
            yield
        finally:
            self._move(-1)

    def _move(self, messages: int) -> None:
        with self._lock:
            self._in_work += messages
            self._moved_at = time.monotonic()

    def see_queue(self, length: int | None) -> None:
        """Messages that wait in the model's queue; None where the broker can't be asked."""
        self._queued, self._queue_seen_at = length, time.monotonic()

    # -- asked ----------------------------------------------------------------------------------------

    @property
    def consuming(self) -> bool:
        """Whether messages are taken, by what Celery says."""
        return self._consuming

    @property
    def queued(self) -> int | None:
        """Messages in the queue at the last look; None when that can't be told."""
        return self._queued if time.monotonic() - self._queue_seen_at < QUEUE_BELIEVED_S else None

    @property
    def quiet_s(self) -> float:
        """Seconds without progress while there was something to do."""
        return time.monotonic() - max(self._moved_at, self._engine.answered_at, self._idle_at)

    def look(self) -> Stall | None:
        """Find what is stuck. To be called about once a second: longer gaps are taken for a process that was stopped.

        An engine or a consumer that was found stuck stays so: the worker leaves because of it.
        """
        now = time.monotonic()
        asleep = now - self._looked_at > ASLEEP_S
        self._looked_at = now
        if asleep or not (self._in_work or self._engine.open_requests or self._messages_wait()):
            self._idle_at = now
        stall = self.stall()
        if stall is not Stall.CHUNK:
            self._stall = stall
        return stall

    def stall(self) -> Stall | None:
        """What has not moved for ``GLEANER_STALL_S``, though there is something to do."""
        limit = self._settings.engine_stall_s
        if self._stall is not None:
            return self._stall
        if min(self._engine.silent_s, time.monotonic() - self._idle_at) > limit:
            return Stall.ENGINE
        if self.quiet_s <= limit:
            return None
        if self._in_work:
            return Stall.CHUNK
        return Stall.CONSUMER if self._messages_wait() else None

    def _messages_wait(self) -> bool:
        """Whether there are messages that this worker should take."""
        leaving = self._stopping.is_set() or self._draining.is_set()
        return self._consuming and not leaving and bool(self.queued)

    @property
    def state(self) -> WorkerState:
        """The state to tell."""
        if self.stall() is not None:
            return WorkerState.STUCK
        if self._stopping.is_set():
            return WorkerState.STOPPING
        if self._draining.is_set():
            return WorkerState.DRAINING
        if not self._consuming:
            return WorkerState.STARTING
        return WorkerState.WORKING if self._in_work else WorkerState.IDLE

    def as_json(self) -> dict[str, Any]:
        """All of it, for people and for those who start workers anew."""
        return {
            "state": self.state,
            "reason": self.stall(),
            "worker": self._worker,
            "model": self._settings.model,
            "engine": self._settings.engine,
            "chunks_in_work": self._in_work,
            "open_requests": self._engine.open_requests,
            "quiet_s": round(self.quiet_s, 1),
            "queued_messages": self.queued,
        }
