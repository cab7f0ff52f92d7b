"""One chunk: claim, load, label, write, finish. Runs in a thread of Celery's pool; the engine has its own."""

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from functools import lru_cache
from queue import Empty, SimpleQueue

import psycopg
from psycopg.types.json import Jsonb

from schemas.database import Pool, queries
from schemas.label_spec import LabelSpec
from schemas.outcomes import EngineLost, LeaseLost, RequestFailed, RowFinal
from schemas.settings import Settings
from worker.document import prepare
from worker.engine.base import Engine, Generation
from worker.lease import Lease, LeaseKeeper
from worker.prompt import UserTurn
from worker.row import LabelCheck, Row, RowInFlight, RowRules
from worker.writer import RowWriter, retrying

logger = logging.getLogger(__name__)

#: Seconds between looks at what does not wake a chunk by itself: shutdown, a lost lease, a lost engine.
LOOK_S = 0.2
#: Longest pause before a chunk in trouble is delivered again, in seconds: a slot waits that long.
MAX_PAUSE_S = 30.0
#: Label specs kept parsed: one a job lately served.
SPECS = 64


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
    ) -> None:
        """:param stopping: set when the worker shuts down: chunks are then given back, finished rows written."""
        self._settings = settings
        self._pool = pool
        self._engine = engine
        self._leases = leases
        self._worker = worker
        self._stopping = stopping
        info = engine.info.as_json()
        with pool.connection() as connection:
            self._engine_id = queries.register_engine(connection, digest=info["digest"], info=Jsonb(info))
        self._spec = lru_cache(maxsize=SPECS)(self._load_spec)

    def run(self, job_id: int, chunk_no: int, report: Callable[[Progress], None]) -> str:
        """Label one chunk.

        :param report: called now and then with the chunk's progress.
        :returns: what happened, in words.
        :raises GiveBack: the chunk must be delivered again.
        """
        if self._stopping.is_set():
            raise GiveBack("the worker is shutting down")
        try:
            lease = retrying()(self._leases.claim, job_id, chunk_no)
        except (psycopg.Error, OSError) as error:
            raise GiveBack(f"no claim: {error}") from error
        if lease is None:
            return "not claimed: finished, or somebody else's"
        try:
            progress = self._label(lease, report)
            self._finish(lease)
        except LeaseLost:
            return "given up: another worker holds the chunk now"
        except (GiveBack, EngineLost) as error:
            self._release(lease, error)
            raise GiveBack(str(error)) from error
        except Exception as error:
            return self._trouble(lease, error)
        finally:
            self._leases.drop(lease)
        return str(progress)

    def _trouble(self, lease: Lease, error: Exception) -> str:
        """An error that is no row's: try the chunk again, a bounded number of times, with growing pauses."""
        logger.error("%s: %s", lease, error, exc_info=error)
        self._release(lease, error)
        if lease.attempt >= self._settings.chunk_attempts:
            return f"left after {lease.attempt} attempts: {error}"
        self._stopping.wait(min(2.0**lease.attempt, MAX_PAUSE_S))
        raise GiveBack(str(error)) from error

    def _label(self, lease: Lease, report: Callable[[Progress], None]) -> Progress:
        for attempt in retrying():
            with attempt, self._pool.connection() as connection:
                queries.start_job(connection, job_id=lease.job_id)
                documents = list(
                    queries.open_documents(
                        connection,
                        job_id=lease.job_id,
                        corpus_id=lease.corpus_id,
                        first_ordinal=lease.first_ordinal,
                        last_ordinal=lease.last_ordinal,
                    )
                )
        rules, turn = self._spec(lease.label_spec_id)
        writer = RowWriter(self._pool, self._settings, lease, self._worker, self._engine_id)
        progress = Progress(done=lease.size - len(documents), size=lease.size)
        rows: list[RowInFlight] = []
        for prepared in prepare(self._engine, rules, turn, documents):
            if isinstance(prepared, Row):
                writer.add(prepared)
                progress.done += 1
            else:
                rows.append(prepared)
        _Flight(self._engine, self._stopping, lease, writer, progress, report).fly(rows)
        return progress

    def _load_spec(self, label_spec_id: int) -> tuple[RowRules, UserTurn]:
        with self._pool.connection() as connection:
            row = queries.label_spec_by_id(connection, label_spec_id=label_spec_id)
        spec = LabelSpec.model_validate({key: row[key] for key in LabelSpec.model_fields})
        rules = RowRules(
            spec=spec,
            check=LabelCheck(spec),
            max_model_len=self._engine.info.max_model_len,
            attempts=self._settings.row_attempts,
            seed=self._settings.seed,
        )
        return rules, UserTurn(spec)

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
                queries.finish_job(connection, job_id=lease.job_id)

    def _release(self, lease: Lease, error: Exception) -> None:
        """Free the lease, so that the next delivery need not wait for it to run out. Best effort: it runs out."""
        words = str(error) or type(error).__name__
        try:
            with self._pool.connection() as connection:
                queries.release_chunk(
                    connection, job_id=lease.job_id, chunk_no=lease.chunk_no, attempt=lease.attempt, error=words
                )
        except (psycopg.Error, OSError):
            logger.warning("%s: lease not freed, it runs out by itself", lease, exc_info=True)


class _Flight:
    """The requests of one chunk, from the first submit to the last row."""

    #: Seconds between two reports of progress.
    REPORT_S = 2.0

    def __init__(
        self,
        engine: Engine,
        stopping: threading.Event,
        lease: Lease,
        writer: RowWriter,
        progress: Progress,
        report: Callable[[Progress], None],
    ) -> None:
        self._engine = engine
        self._stopping = stopping
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
            for future in self._open:
                future.cancel()
            if isinstance(error, GiveBack | EngineLost):
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
        if self._stopping.is_set():
            raise GiveBack("the worker is shutting down")
        if self._engine.lost:
            raise EngineLost("the engine is gone")
        pause = self._writer.seconds_to_flush()
        with contextlib.suppress(Empty):
            self._take(self._ended.get(timeout=LOOK_S if pause is None else min(pause, LOOK_S)))
        if self._writer.seconds_to_flush() == 0:
            self._writer.flush()
        if time.monotonic() - self._reported >= self.REPORT_S:
            self._reported = time.monotonic()
            self._report(self._progress)

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
            return
        row = done.row.collect(finished) if done.row.collect else finished
        if row is None:  # more parts of its document are at the engine
            return
        self._writer.add(row)
        self._progress.done += 1
