"""One chunk: claim, load, label, write, finish. Runs in a thread of Celery's pool; the engine has its own."""

import logging
import random
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NoReturn

import psycopg
from psycopg.types.json import Jsonb

from schemas.closing import close_job
from schemas.database import queries
from schemas.jsontext import make_storable
from schemas.outcomes import CanaryFailed, EngineLost, LeaseLost, Withdrawn
from schemas.pool import Pool
from schemas.settings import Settings
from worker.document import prepare
from worker.flight import Flight, GiveBack, Progress
from worker.gate import Gate
from worker.lease import Lease, LeaseKeeper
from worker.pulse import PulsedEngine
from worker.retries import retrying, transient
from worker.row import Row, RowInFlight
from worker.specs import Specs
from worker.writer import RowWriter

logger = logging.getLogger(__name__)

#: Longest pause before a chunk in trouble is delivered again, in seconds: a slot waits that long.
MAX_PAUSE_S = 30.0
#: What a chunk says of an engine that died; what the engine says of itself is in the worker's log.
ENGINE_GONE = "the engine is gone"
#: Pause before a message goes back whose chunk Postgres would not let us claim, in seconds: a right that is missing,
#: say, stays missing for a while.
NO_CLAIM_PAUSE_S = 5.0
#: Pause before a message goes back that came to a worker on its way out, in seconds: it comes again at once.
LEAVING_PAUSE_S = 0.5


class _NothingToJudge(Exception):
    """No quarantined chunk waits any more."""


class ChunkRunner:
    """Labels chunks with one engine. One runner a worker; ``run`` may be called from several threads at once."""

    def __init__(
        self,
        settings: Settings,
        pool: Pool,
        engine: PulsedEngine,
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
        self._gate = Gate()
        self._judging = threading.Lock()

    def run(self, job_id: int, chunk_no: int, report: Callable[[Progress], None]) -> str:
        """Label one chunk: the one that the message names, or another that waits and comes first.

        :param report: called now and then with the chunk's progress.
        :returns: what happened, in words.
        :raises GiveBack: the message must be delivered again.
        """
        try:
            return self._run(job_id, chunk_no, report)
        except GiveBack as error:
            # Outside of the gate: nobody waits for it.
            self._stopping.wait(error.pause_s)
            raise
        except Exception as error:
            # Nothing that we foresaw, before there was a chunk whose fault it could be.
            logger.exception("job %d chunk %d", job_id, chunk_no)
            self._stopping.wait(NO_CLAIM_PAUSE_S)
            raise GiveBack(f"no claim: {error}") from error

    def _run(self, job_id: int, chunk_no: int, report: Callable[[Progress], None]) -> str:
        leaving = GiveBack("the worker is leaving", LEAVING_PAUSE_S)
        if self._stopping.is_set() or self._draining.is_set() or self._engine.lost:
            raise leaving
        try:
            # Seldom while others wait: it may take the worker down, and them with it.
            if random.random() < self._settings.fair_share and (done := self._run_quarantined(report)):
                return done
            with self._gate.together(self._look_in):
                lease = retrying(self._settings)(self._leases.claim, job_id, chunk_no)
                if lease is not None:
                    return self._work(lease, report)
            return self._run_quarantined(report) or "nothing waits"
        except EngineLost:
            raise leaving from None
        except (psycopg.Error, OSError) as error:
            raise GiveBack(f"no claim: {error}", NO_CLAIM_PAUSE_S) from error

    def _run_quarantined(self, report: Callable[[Progress], None]) -> str | None:
        """Label a chunk that must have the engine for itself, if one waits. What happened, in words."""
        # One of this worker's threads waits for the gate to be empty, and as long as there is something to wait for.
        if not self._judging.acquire(blocking=False):
            return None
        try:
            self._look_for_quarantined()
            with self._gate.alone(self._look_for_quarantined):
                lease = retrying(self._settings)(self._leases.claim_quarantined)
                if lease is None:
                    return None
                logger.warning("%s went wrong before: it gets the engine for itself", lease)
                return self._work(lease, report)
        except _NothingToJudge:
            return None
        finally:
            self._judging.release()

    def _look_for_quarantined(self) -> None:
        self._look_in()
        if not retrying(self._settings)(self._leases.quarantined_waits):
            raise _NothingToJudge

    def _work(self, lease: Lease, report: Callable[[Progress], None]) -> str:
        try:
            progress = self._label(lease, report)
            self._finish(lease)
        except LeaseLost:
            return f"{lease} given up: its lease is lost"
        except Withdrawn:
            self._leases.release(lease, "the job was cancelled")
            return f"{lease} given up: its job was cancelled"
        except GiveBack as error:
            self._leases.release(lease, str(error))
            raise
        except EngineLost as error:
            self._engine.give_up()  # before anybody else claims a chunk for it
            self._leases.release(lease, ENGINE_GONE, failed=1)
            raise GiveBack(ENGINE_GONE) from error
        except CanaryFailed as error:
            return self._refuse(lease, error)
        except psycopg.ProgrammingError as error:  # a right or a column is missing: every chunk would fail so
            return self._refuse(lease, error)
        except Exception as error:
            self._trouble(lease, error)
        finally:
            self._leases.drop(lease)
        return str(progress)

    def _refuse(self, lease: Lease, error: CanaryFailed | psycopg.ProgrammingError) -> str:
        """This worker can't do the job, whatever the chunk: it waits for a person, and costs the others nothing."""
        logger.error("%s: %s", lease, error)
        reason = make_storable(f"refused by {self._worker}: {error}")
        try:
            for one_try in retrying(self._settings):
                with one_try, self._pool.connection() as connection:
                    queries.pause_job(connection, job_id=lease.job_id, reason=reason)
        finally:
            self._leases.release(lease, str(error))
        return f"{lease} given up, its job paused: {error}"

    def _trouble(self, lease: Lease, error: Exception) -> NoReturn:
        """An error that is no row's: give the chunk back after a pause that grows with its failures."""
        logger.error("%s: %s", lease, error, exc_info=error)
        # A database that is away is nobody's fault.
        failed = 0 if transient(error) else 1
        failures = self._leases.release(lease, str(error) or type(error).__name__, failed)
        raise GiveBack(str(error), min(2.0**failures, MAX_PAUSE_S)) from error

    def _label(self, lease: Lease, report: Callable[[Progress], None]) -> Progress:
        for one_try in retrying(self._settings):
            with one_try, self._pool.connection() as connection:
                queries.start_job(connection, job_id=lease.job_id)
        # Its canary is one for all chunks that wait for it: what ends one of them does not end the canary.
        rules, turn = self._specs.get(lease.label_spec_id, self._look)
        writer = RowWriter(self._pool, self._settings, lease, self._worker, self._engine_id)
        progress = Progress(lease.name, done=lease.size, size=lease.size)
        for documents in self._pages(lease, with_meta=turn.needs_meta):
            progress.done = lease.size - documents[0]["open"]
            rows: list[RowInFlight] = []
            for prepared in prepare(self._engine, rules, turn, documents):
                if isinstance(prepared, Row):
                    writer.add(prepared)
                    progress.done += 1
                else:
                    rows.append(prepared)
            Flight(self._engine, partial(self._look_at, lease), writer, progress, report).fly(rows)
            del documents, rows, prepared  # before the next are loaded
        return progress

    def _pages(self, lease: Lease, *, with_meta: bool) -> Iterator[list[dict[str, Any]]]:
        """The chunk's documents without a row, page by page: few where they are long."""
        first, more = lease.first_ordinal, True
        while more:
            for one_try in retrying(self._settings):
                with one_try, self._pool.connection() as connection:
                    page = list(
                        queries.open_documents(
                            connection,
                            job_id=lease.job_id,
                            corpus_id=lease.corpus_id,
                            first_ordinal=first,
                            last_ordinal=lease.last_ordinal,
                            with_meta=with_meta,
                            max_bytes=self._settings.page_max_bytes,
                        )
                    )
            if not page:
                return
            first, more = page[-1]["ordinal"] + 1, len(page) < page[0]["open"]
            yield page
            del page

    def _look(self) -> None:
        """Raises what ends all chunks of this worker."""
        if self._engine.lost:
            raise EngineLost(ENGINE_GONE)
        if self._stopping.is_set():
            raise GiveBack("the worker is shutting down")

    def _look_in(self) -> None:
        """Raises what keeps a chunk from being claimed."""
        self._look()
        if self._draining.is_set():
            raise GiveBack("the worker is leaving", LEAVING_PAUSE_S)

    def _look_at(self, lease: Lease) -> None:
        """Raises what ends one chunk."""
        if lease.lost.is_set():
            raise LeaseLost(str(lease))
        if lease.withdrawn.is_set():
            raise Withdrawn(str(lease))
        self._look()

    def _finish(self, lease: Lease) -> None:
        for one_try in retrying(self._settings):
            with one_try, self._pool.connection() as connection:
                answer = queries.finish_chunk(
                    connection, job_id=lease.job_id, chunk_no=lease.chunk_no, attempt=lease.attempt
                )
                if not answer["held"]:
                    raise LeaseLost(str(lease))
                if not answer["finished"]:
                    raise RuntimeError(f"{lease}: a document has no row")
        for one_try in retrying(self._settings):
            with one_try, self._pool.connection() as connection:
                close_job(connection, lease.job_id)
