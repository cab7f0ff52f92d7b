"""One chunk: claim, load, label, write, finish. Runs in a thread of Celery's pool; the engine has its own."""

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue

import psycopg
from psycopg.types.json import Jsonb

from schemas.database import Pool, queries
from schemas.jsontext import make_storable
from schemas.outcomes import CanaryFailed, EngineLost, LeaseLost, RequestFailed, RowFinal
from schemas.settings import Settings
from worker.document import prepare
from worker.engine.base import Engine, Generation
from worker.lease import Lease, LeaseKeeper
from worker.row import Row, RowInFlight
from worker.specs import Specs
from worker.writer import RowWriter, retrying

logger = logging.getLogger(__name__)

#: Seconds between looks at what does not wake a chunk by itself: shutdown, a lost lease, a lost engine.
LOOK_S = 0.2
#: Longest pause before a chunk in trouble is delivered again, in seconds: a slot waits that long.
MAX_PAUSE_S = 30.0
#: What a chunk says of an engine that died; what the engine says of itself is in the worker's log.
ENGINE_GONE = "the engine is gone"
#: Pause before a chunk goes back whose job this engine refused lately, in seconds: another worker may take it.
REFUSED_PAUSE_S = 0.5
#: Pause before a message goes back whose chunk Postgres would not let us claim, in seconds: a right that is missing,
#: say, stays missing for a while.
NO_CLAIM_PAUSE_S = 5.0
#: Pause before a message goes back that came to a worker on its way out, in seconds: it comes again at once.
LEAVING_PAUSE_S = 0.5


class GiveBack(Exception):
    """The chunk could not be finished here and now; its rows so far are written and its lease is free."""


@dataclass
class Progress:
    """How far a chunk is, for Flower."""

    done: int
    size: int
    output_tokens: int = 0
    started: float = field(default_factory=time.monotonic)

    def __str__(self) -> str:
        rate = self.output_tokens / max(time.monotonic() - self.started, 1e-3)
        return f"{self.done}/{self.size} rows, {rate:.0f} tok/s"


@dataclass
class _Done:
    """A request that ended, on its way from the engine's thread to the chunk's."""

    row: RowInFlight
    future: Future[Generation]
    latency_s: float


class ChunkRunner:
    """Labels chunks with one engine. One runner a worker; ``run`` may be called from several threads at once."""

    def __init__(
        self,
        settings: Settings,
        pool: Pool,
        engine: Engine,
        leases: LeaseKeeper,
        worker: str,
        stopping: threading.Event,
        draining: threading.Event,
    ) -> None:
        """
        :param stopping: set when the worker shuts down: chunks are then given back, finished rows written.
        :param draining: set when the worker must leave but has time: no chunk is claimed, those in flight are finished.
        """
        self._settings = settings
        self._pool = pool
        self._engine = engine
        self._leases = leases
        self._worker = worker
        self._stopping = stopping
        self._draining = draining
        info = engine.info.as_json()
        with pool.connection() as connection:
            self._engine_id = queries.register_engine(connection, digest=info["digest"], info=Jsonb(info))
        self._specs = Specs(settings, pool, engine)

    def run(self, job_id: int, chunk_no: int, report: Callable[[Progress], None]) -> str:
        """Label one chunk.

        :param report: called now and then with the chunk's progress.
        :returns: what happened, in words.
        :raises GiveBack: the chunk must be delivered again.
        """
        if self._stopping.is_set() or self._draining.is_set() or self._engine.lost:
            self._stopping.wait(LEAVING_PAUSE_S)
            raise GiveBack("the worker is leaving")
        try:
            lease = retrying()(self._leases.claim, job_id, chunk_no)
        except (psycopg.Error, OSError) as error:
            self._stopping.wait(NO_CLAIM_PAUSE_S)
            raise GiveBack(f"no claim: {error}") from error
        if lease is None:
            return "not claimed: finished, or somebody else's"
        try:
            progress = self._label(lease, report)
            self._finish(lease)
        except LeaseLost:
            return "given up: another worker holds the chunk now"
        except GiveBack as error:
            self._release(lease, str(error))
            raise
        except EngineLost as error:
            self._release(lease, ENGINE_GONE)
            raise GiveBack(ENGINE_GONE) from error
        except Exception as error:
            return self._trouble(lease, error)
        finally:
            self._leases.drop(lease)
        return str(progress)

    def _trouble(self, lease: Lease, error: Exception) -> str:
        """An error that is no row's: try the chunk again, a bounded number of times, with growing pauses."""
        refused = isinstance(error, CanaryFailed)
        logger.error("%s: %s", lease, error, exc_info=None if refused else error)
        failures = self._release(lease, str(error) or type(error).__name__, failed=1)
        if failures >= self._settings.chunk_attempts:
            return f"left after {failures} failures, `producer enqueue` tries it again: {error}"
        self._stopping.wait(REFUSED_PAUSE_S if refused else min(2.0**failures, MAX_PAUSE_S))
        raise GiveBack(str(error)) from error

    def _label(self, lease: Lease, report: Callable[[Progress], None]) -> Progress:
        for attempt in retrying():
            with attempt, self._pool.connection() as connection:
                queries.start_job(connection, job_id=lease.job_id)
        rules, turn = self._specs.get(lease.label_spec_id, self._look)
        for attempt in retrying():
            with attempt, self._pool.connection() as connection:
                documents = list(
                    queries.open_documents(
                        connection,
                        job_id=lease.job_id,
                        corpus_id=lease.corpus_id,
                        first_ordinal=lease.first_ordinal,
                        last_ordinal=lease.last_ordinal,
                        with_meta=turn.needs_meta,
                    )
                )
        writer = RowWriter(self._pool, self._settings, lease, self._worker, self._engine_id)
        progress = Progress(done=lease.size - len(documents), size=lease.size)
        rows: list[RowInFlight] = []
        for prepared in prepare(self._engine, rules, turn, documents):
            if isinstance(prepared, Row):
                writer.add(prepared)
                progress.done += 1
            else:
                rows.append(prepared)
        _Flight(self._engine, self._look, lease, writer, progress, report).fly(rows)
        return progress

    def _look(self) -> None:
        """Raises what ends all chunks of this worker."""
        if self._engine.lost:
            raise EngineLost(ENGINE_GONE)
        if self._stopping.is_set():
            raise GiveBack("the worker is shutting down")

    def _finish(self, lease: Lease) -> None:
        for attempt in retrying():
            with attempt, self._pool.connection() as connection:
                answer = queries.finish_chunk(
                    connection, job_id=lease.job_id, chunk_no=lease.chunk_no, attempt=lease.attempt
                )
                if not answer["held"]:
                    raise LeaseLost(str(lease))
                if not answer["finished"]:
                    raise RuntimeError(f"{lease}: a document has no row")
        for attempt in retrying():
            with attempt, self._pool.connection() as connection:
                queries.finish_job(connection, job_id=lease.job_id)

    def _release(self, lease: Lease, words: str, failed: int = 0) -> int:
        """Free the lease, so that the next delivery need not wait for it to run out. Best effort: it runs out.

        :param failed: 1 when the chunk itself went wrong. :returns: how often it has, as far as can be told.
        """
        try:
            with self._pool.connection() as connection:
                released = queries.release_chunk(
                    connection,
                    job_id=lease.job_id,
                    chunk_no=lease.chunk_no,
                    attempt=lease.attempt,
                    error=make_storable(words),
                    failed=failed,
                )
        except (psycopg.Error, OSError):
            logger.warning("%s: lease not freed, it runs out by itself", lease, exc_info=True)
            return failed
        return int(released["failures"]) if released else failed


class _Flight:
    """The requests of one chunk, from the first submit to the last row."""

    #: Seconds between two reports of progress.
    REPORT_S = 2.0

    def __init__(
        self,
        engine: Engine,
        look: Callable[[], None],
        lease: Lease,
        writer: RowWriter,
        progress: Progress,
        report: Callable[[Progress], None],
    ) -> None:
        self._engine = engine
        self._look = look
        self._lease = lease
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
        :raises EngineLost: the engine is gone.
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
            if isinstance(error, GiveBack | EngineLost):
                for done in ended:
                    self._keep(done)
                self._writer.flush()
            raise
        self._writer.flush()

    def _submit(self, row: RowInFlight) -> None:
        submitted = time.monotonic()
        future = self._engine.submit(row.request())
        self._open.add(future)
        future.add_done_callback(lambda ended: self._ended.put(_Done(row, ended, time.monotonic() - submitted)))

    def _wait(self) -> None:
        if self._lease.lost.is_set():
            raise LeaseLost(str(self._lease))
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
