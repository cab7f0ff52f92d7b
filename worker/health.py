"""Looks after the worker from a thread of its own: an engine that is gone, memory that has grown, a stop that hangs."""

import logging
import os
import threading
import time
from collections.abc import Callable

from schemas.settings import Settings
from worker.engine.base import Engine
from worker.memory import GIB, memory_is_readable, resident_bytes

logger = logging.getLogger(__name__)

#: Exit code when the engine is gone: the supervisor starts a new worker (EX_SOFTWARE of sysexits.h).
EXIT_ENGINE_LOST = 70
#: Exit code at the memory limit: the supervisor starts a new worker (EX_TEMPFAIL of sysexits.h).
EXIT_MEMORY_LIMIT = 75
#: Exit code when stopping took too long.
EXIT_OVERDUE = 1
#: Seconds between looks at the engine, which does not report its end by itself.
LOOK_S = 1.0
#: Seconds between looks at the memory: it grows over hours, and a look reads a file for each process of the host.
MEMORY_LOOK_S = 5.0


class HealthWatch:
    """Calls ``leave`` once, with an exit code, when the worker can't go on."""

    def __init__(
        self, settings: Settings, engine: Engine, stopping: threading.Event, leave: Callable[[int], None]
    ) -> None:
        """
        :param stopping: set when chunks are being given back; from then on ``shutdown_s`` counts.
        :param leave: makes the worker stop and exit with this code; called from the watch's thread.
        """
        self._limit_gib = settings.memory_limit_gib
        self._shutdown_s = settings.shutdown_s
        self._engine = engine
        self._stopping = stopping
        self._leave = leave
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="health", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        if self._limit_gib is not None and not memory_is_readable():
            logger.warning("GLEANER_MEMORY_LIMIT_GIB is off: this system has no /proc to read memory from")
            self._limit_gib = None
        self._thread.start()

    def stop(self) -> None:
        """Watch no more."""
        self._closed.set()

    def _watch(self) -> None:
        self._until_ill_or_stopping()
        while not self._stopping.wait(LOOK_S):  # draining takes what it takes
            if self._closed.is_set():
                return
        if not self._closed.wait(self._shutdown_s):
            logger.critical(
                "chunks were not given back in %g s (GLEANER_SHUTDOWN_S): leaving all the same, their leases run out",
                self._shutdown_s,
            )
            os._exit(EXIT_OVERDUE)

    def _until_ill_or_stopping(self) -> None:
        memory_seen = time.monotonic()
        while not self._stopping.wait(LOOK_S) and not self._closed.is_set():
            if self._engine.lost:
                logger.critical("the engine is gone: giving chunks back, exit %d", EXIT_ENGINE_LOST)
                self._leave(EXIT_ENGINE_LOST)
                return
            if self._limit_gib is None or time.monotonic() - memory_seen < MEMORY_LOOK_S:
                continue
            memory_seen = time.monotonic()
            used_gib = resident_bytes() / GIB
            if used_gib > self._limit_gib:
                logger.error(
                    "%.2f GiB of host memory are in use, GLEANER_MEMORY_LIMIT_GIB is %g: finishing the chunks in "
                    "flight, exit %d. If this comes soon after each start, the limit is too low for this model.",
                    used_gib, self._limit_gib, EXIT_MEMORY_LIMIT,
                )  # fmt: skip
                self._leave(EXIT_MEMORY_LIMIT)
                return
