"""Looks after the worker: an engine gone or silent, a deaf consumer, memory that has grown, a stop that hangs."""

import logging
import threading
import time
from collections.abc import Callable

from schemas.settings import Settings
from worker.memory import GIB, memory_is_readable, resident_bytes
from worker.pulse import PulsedEngine
from worker.vitals import Stall, Vitals

logger = logging.getLogger(__name__)

#: Exit code when the engine is gone or silent: the supervisor starts a new worker (EX_SOFTWARE of sysexits.h).
EXIT_ENGINE_LOST = 70
#: Exit code at the memory limit: the supervisor starts a new worker (EX_TEMPFAIL of sysexits.h).
EXIT_MEMORY_LIMIT = 75
#: Exit code when the broker's messages no longer reach us. The same: a new worker is all that it takes.
EXIT_DEAF = 75
#: Exit code when stopping took too long.
EXIT_OVERDUE = 1
#: Seconds between looks at the engine, which does not report its end by itself.
LOOK_S = 1.0
#: Seconds between looks at the memory: it grows over hours, and a look reads a file for each process of the host.
MEMORY_LOOK_S = 5.0


class HealthWatch:
    """Calls ``leave``, with an exit code, when the worker can't go on, and ``overdue`` when it does not get away."""

    def __init__(
        self,
        settings: Settings,
        vitals: Vitals,
        engine: PulsedEngine,
        stopping: threading.Event,
        draining: threading.Event,
        leave: Callable[[int], None],
        overdue: Callable[[int, str], None],
    ) -> None:
        """
        :param stopping: chunks are being given back: set here, or elsewhere; from then on ``shutdown_s`` counts.
        :param draining: the chunks in work are finished, no other is claimed: set here.
        :param leave: makes the worker stop and exit with this code; called from the watch's thread.
        :param overdue: ends the process with this code and these words for the log.
        """
        self._settings = settings
        self._limit_gib = settings.memory_limit_gib
        self._vitals = vitals
        self._engine = engine
        self._stopping = stopping
        self._draining = draining
        self._leave = leave
        self._overdue = overdue
        self._exit_code: int | None = None
        self._memory_seen_at: float | None = None
        self._thread = threading.Thread(target=self._watch, name="health", daemon=True)

    def start(self) -> None:
        """Begin to watch. Before the engine loads: a stop that hangs then is overdue as well."""
        if self._limit_gib is not None and not memory_is_readable():
            logger.warning("GLEANER_MEMORY_LIMIT_GIB is off: this system has no /proc to read memory from")
            self._limit_gib = None
        self._thread.start()

    def _watch(self) -> None:
        while not self._stopping.wait(LOOK_S):
            self._look()
        logger.info("stopping; a second SIGTERM or Ctrl-C leaves at once")
        # Nobody calls this off: a stop in time takes the thread along.
        time.sleep(self._settings.shutdown_s)
        words = f"not stopped within {self._settings.shutdown_s:g} s (GLEANER_SHUTDOWN_S): leaving all the same"
        self._overdue(EXIT_OVERDUE if self._exit_code is None else self._exit_code, words)

    def _look(self) -> None:
        stall = self._vitals.look()
        if stall is Stall.ENGINE:
            self._engine.give_up()
            self._end(EXIT_ENGINE_LOST, f"{stall} for {self._settings.engine_stall_s:g} s (GLEANER_STALL_S)")
        elif self._engine.lost:
            self._end(EXIT_ENGINE_LOST, "the engine is gone")
        elif stall is Stall.CONSUMER:
            waiting = f"{self._vitals.queued or 'some'} of them, GLEANER_STALL_S is {self._settings.engine_stall_s:g}"
            self._end(EXIT_DEAF, f"{stall} by this worker ({waiting})")
        elif self._vitals.consuming and self._exit_code is None:
            self._look_at_memory()

    def _end(self, exit_code: int, words: str) -> None:
        logger.critical("%s: giving chunks back, exit %d", words, exit_code)
        self._stopping.set()
        self._exit_code = exit_code
        self._leave(exit_code)

    def _look_at_memory(self) -> None:
        now = time.monotonic()
        if self._memory_seen_at is None:
            self._memory_seen_at = now
        if self._limit_gib is None or now - self._memory_seen_at < MEMORY_LOOK_S:
            return
        self._memory_seen_at = now
        used_gib = resident_bytes() / GIB
        if used_gib > self._limit_gib:
            logger.error(
                "%.2f GiB of host memory are in use, GLEANER_MEMORY_LIMIT_GIB is %g: finishing the chunks in "
                "flight, exit %d. If this comes soon after each start, the limit is too low for this model.",
                used_gib, self._limit_gib, EXIT_MEMORY_LIMIT,
            )  # fmt: skip
            self._draining.set()
            self._exit_code = EXIT_MEMORY_LIMIT
            self._leave(EXIT_MEMORY_LIMIT)
