"""The requests of one chunk at the engine, from the first submit to the last row."""

import contextlib
import logging
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue

import psycopg

from schemas.outcomes import EngineLost, LeaseLost, RequestFailed, RowFinal, Withdrawn
from worker.engine.base import Engine, Generation
from worker.row import Row, RowInFlight
from worker.writer import RowWriter

logger = logging.getLogger(__name__)

#: Seconds between looks at what does not wake a chunk by itself: shutdown, a lost lease, a lost engine.
LOOK_S = 0.2


class GiveBack(Exception):
    """The chunk could not be finished here and now; its rows so far are written and its lease is free.

    ``pause_s``: seconds to hold its message back, where coming again at once would be in vain.
    """

    def __init__(self, words: str, pause_s: float = 0.0) -> None:
        super().__init__(words)
        self.pause_s = pause_s


@dataclass
class Progress:
    """How far a chunk is, for Flower."""

    chunk: str
    done: int
    size: int
    output_tokens: int = 0
    started: float = field(default_factory=time.monotonic)

    def __str__(self) -> str:
        rate = self.output_tokens / max(time.monotonic() - self.started, 1e-3)
        return f"{self.chunk}: {self.done}/{self.size} rows, {rate:.0f} tok/s"


@dataclass
class _Done:
    """A request that ended, on its way from the engine's thread to the chunk's."""

    row: RowInFlight
    future: Future[Generation]
    latency_s: float


class Flight:
    """Submits the documents of a chunk and writes their rows as they end."""

    #: Seconds between two reports of progress.
    REPORT_S = 2.0

    def __init__(
        self,
        engine: Engine,
        look: Callable[[], None],
        writer: RowWriter,
        progress: Progress,
        report: Callable[[Progress], None],
    ) -> None:
        """:param look: called now and then; raises what ends the chunk early."""
        self._engine = engine
        self._look = look
        self._writer = writer
        self._progress = progress
        self._report = report
        self._ended: SimpleQueue[_Done] = SimpleQueue()
        self._open: set[Future[Generation]] = set()
        self._reported = time.monotonic()

    def fly(self, rows: list[RowInFlight]) -> None:
        """Submit all rows and write each as it ends.

        However it ends early, every request is cancelled first; but for a lost lease, finished rows are written.

        :raises LeaseLost: the chunk is another worker's. :raises GiveBack: the worker stops.
        :raises Withdrawn: the job was cancelled. :raises EngineLost: the engine is gone.
        """
        try:
            for row in rows:
                self._submit(row)
            while self._open:
                self._wait()
        except BaseException as error:
            # Before the cancelling, whose ends come the same way.
            ended = self._ended_by_now()
            for future in self._open:
                future.cancel()
            if isinstance(error, GiveBack | EngineLost | Withdrawn):
                self._keep_all(ended)
            raise
        self._writer.flush()

    def _submit(self, row: RowInFlight) -> None:
        submitted = time.monotonic()
        future = self._engine.submit(row.request())
        self._open.add(future)
        future.add_done_callback(lambda ended: self._ended.put(_Done(row, ended, time.monotonic() - submitted)))

    def _wait(self) -> None:
        self._look()
        pause = self._writer.seconds_to_flush()
        with contextlib.suppress(Empty):
            self._take(self._ended.get(timeout=LOOK_S if pause is None else min(pause, LOOK_S)))
        if self._writer.seconds_to_flush() == 0:
            self._writer.flush()
        if time.monotonic() - self._reported >= self.REPORT_S:
            self._reported = time.monotonic()
            self._report(self._progress)

    def _ended_by_now(self) -> list[_Done]:
        ended = []
        with contextlib.suppress(Empty):
            while True:
                ended.append(self._ended.get_nowait())
        return ended

    def _keep_all(self, ended: list[_Done]) -> None:
        """Write what can be; what can't is made again, and the chunk ends for its own reason."""
        try:
            for done in ended:
                self._keep(done)
            self._writer.flush()
        except (psycopg.Error, LeaseLost) as error:
            logger.warning("finished rows not written: %s", error)

    def _keep(self, done: _Done) -> None:
        """Write what a request that ended just before the chunk came to; no further try."""
        if done.future.cancelled() or done.future.exception() is not None:
            return
        finished = done.row.take(done.future.result(), done.latency_s)
        if finished is not None:
            self._write(done.row, finished)

    def _take(self, done: _Done) -> None:
        self._open.discard(done.future)
        try:
            generation = done.future.result()
            self._progress.output_tokens += generation.output_tokens
            finished = done.row.take(generation, done.latency_s)
        except (RowFinal, RequestFailed) as error:
            finished = done.row.fail(error, done.latency_s)
        except CancelledError:
            finished = done.row.fail(RequestFailed("the request was cancelled"), done.latency_s)
        if finished is None:
            self._submit(done.row)
        else:
            self._write(done.row, finished)

    def _write(self, row: RowInFlight, finished: Row) -> None:
        whole = row.collect(finished) if row.collect else finished
        if whole is not None:  # else more parts of its document are at the engine
            self._writer.add(whole)
            self._progress.done += 1
