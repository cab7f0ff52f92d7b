"""Makes Postgres's view of the work come true: chunks that wait get messages, dead workers' chunks come back, jobs end.

The broker is a courier that may forget everything, and workers may die at any moment without a word. One reconciler at
a time, by an advisory lock, looks at what is open in Postgres and puts right what is not as it should be.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

import psycopg
from celery import Celery
from kombu.exceptions import KombuError, OperationalError
from redis.exceptions import RedisError

from producer.cancelling import cancel_open_chunks
from producer.flower import JobRows
from producer.publish import try_publish_waiting
from schemas.closing import close_job
from schemas.database import Connection, connect, queries, require_migrated
from schemas.errors import BrokerUnavailable, DatabaseUnavailable
from schemas.queue import queued_messages
from schemas.settings import Settings

#: Chunks that one statement takes over or looks through: well below a second of work.
BATCH = 1000
#: Seconds for which a queue holds messages that nobody takes until it is said, and said again.
UNATTENDED_S = 60.0
#: Times that a document must go wrong with nothing else at the engine: once may be a power cut at the wrong moment.
POISON_FAILURES = 2
#: Seconds for which a statement waits for somebody's lock: a forgotten transaction must not hold everything up.
LOCK_S = 5
#: Seconds between two tries to reach Postgres.
RECONNECT_S = 2.0
#: What a row of the reconciler's has for a worker.
WRITER = "reconciler"


class Decision(StrEnum):
    """What the reconciler decided about a chunk, a job or a queue."""

    TAKEN_OVER = "taken over"  #: its lease ran out: the chunk waits again
    QUARANTINED = "quarantined"  #: its lease ran out once too often: the chunk gets an engine for itself
    HALVED = "halved"  #: it went wrong alone: each half is tried alone
    TRIED_AGAIN = "tried again"  #: one document was left of it: that is tried alone once more
    POISON = "poison"  #: one document was left of it: that gets the row `failed`
    CLOSED = "closed"  #: it went wrong alone, but all its documents have their rows
    PAUSED = "paused"  #: a job had too much poison
    PUBLISHED = "published"  #: chunks waited without a message
    CANCELLED = "cancelled"  #: chunks of a job that is being cancelled were closed
    ENDED = "ended"  #: the last chunk was done, and the job had not been told
    UNATTENDED = "unattended"  #: messages wait and nobody takes them
    UNREACHABLE = "unreachable"  #: Postgres or the broker is away: tried again
    FAILED = "failed"  #: Postgres refused a step for one job or chunk, or it took too long: tried again


@dataclass(frozen=True)
class Act:
    """A decision with its reason in words, and what it is about."""

    decision: Decision
    reason: str
    model: str | None = None
    job_id: int | None = None
    chunk_no: int | None = None
    count: int = 1

    def as_json(self) -> dict[str, Any]:
        """The fields that hold something, by name."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def __str__(self) -> str:
        about = [
            f"job {self.job_id}" if self.job_id is not None else None,
            f"chunk {self.chunk_no}" if self.chunk_no is not None else None,
            f"model {self.model}" if self.model is not None else None,
        ]
        subject = " ".join(part for part in about if part)
        return f"{subject}{' ' if subject else ''}{self.decision}: {self.reason}"


class Reconciler:
    """Passes over what is open. :meth:`run` until told to stop, or :meth:`one_pass` on a connection with the lock."""

    def __init__(self, settings: Settings, app: Celery, tell: Callable[[Act], None]) -> None:
        """:param tell: takes each act as it is done."""
        self._settings = settings
        self._app = app
        self._tell = tell
        self._rows = JobRows(app)
        #: Since when a model's queue stands still, by the monotonic clock, with how many chunks waiting.
        self._still: dict[str, tuple[float, int]] = {}
        #: Before this moment no lease is taken over: after an outage their workers renew them first.
        self._take_over_from = 0.0

    def run(self, stop: threading.Event, stand_by: Callable[[], None]) -> None:
        """Pass after pass until ``stop``. While another reconciler is at work, wait for its end.

        :param stand_by: called once when another one is found at work.
        :raises GleanerError: Postgres is not to be had at the first connection, or is at another revision at any.
        """
        connection = self._connect()
        standing_by = False
        while not stop.is_set():
            try:
                if connection.closed:
                    connection = self._connect()
                    self._take_over_from = time.monotonic() + self._settings.lease_s / 3
                if queries.try_reconcile_lock(connection):
                    standing_by = False
                    self.one_pass(connection)
                elif not standing_by:
                    standing_by = True
                    stand_by()
                stop.wait(self._settings.reconcile_s)
            except (psycopg.Error, DatabaseUnavailable) as error:
                self._tell(Act(Decision.UNREACHABLE, f"Postgres: {_first_line(error)}"))
                connection.close()
                stop.wait(RECONNECT_S)
        connection.close()

    def _connect(self) -> Connection:
        connection = connect(self._settings, "producer reconcile")
        try:
            require_migrated(connection)
            connection.execute("SELECT set_config('lock_timeout', %s, false)", [f"{LOCK_S}s"])
        except BaseException:
            connection.close()
            raise
        return connection

    def one_pass(self, connection: Connection) -> None:
        """Put right what is not as it should be. On a connection that has the reconciler's lock.

        :raises psycopg.Error: when Postgres goes away; the next pass goes on from there.
        """
        if time.monotonic() >= self._take_over_from:
            with self._apart(connection, "taking over"):
                self._take_over(connection)
        with self._apart(connection, "judging"):
            self._judge_quarantined(connection)
        with self._apart(connection, "moving jobs on"):
            self._move_jobs_on(connection)
        try:
            with self._apart(connection, "publishing"):
                self._publish(connection)
            with self._apart(connection, "showing jobs in Flower"):
                self._rows.show(list(queries.jobs_in_work(connection)))
        except (BrokerUnavailable, KombuError, OperationalError, RedisError, OSError) as error:
            self._tell(Act(Decision.UNREACHABLE, f"broker: {_first_line(error)}"))

    @contextmanager
    def _apart(self, connection: Connection, what: str, **about: Any) -> Iterator[None]:
        """Keep what fails for one job or chunk from the others. A lost connection ends the pass."""
        try:
            yield
        except psycopg.Error as error:
            if connection.closed:
                raise
            self._tell(Act(Decision.FAILED, f"{what}: {_first_line(error)}", **about))

    def _take_over(self, connection: Connection) -> None:
        limit = self._settings.chunk_max_failures
        while taken := list(queries.take_over_expired(connection, max_failures=limit, batch=BATCH)):
            for chunk in taken:
                decision = Decision.QUARANTINED if chunk["state"] == "quarantined" else Decision.TAKEN_OVER
                reason = f"the lease of {chunk['lease_owner']} ran out (failure {chunk['failures']})"
                self._tell(Act(decision, reason, job_id=chunk["job_id"], chunk_no=chunk["chunk_no"]))

    def _judge_quarantined(self, connection: Connection) -> None:
        paused: set[int] = set()
        for chunk in list(queries.condemned_chunks(connection, batch=BATCH)):
            key = {"job_id": chunk["job_id"], "chunk_no": chunk["chunk_no"]}
            if chunk["job_id"] in paused:
                continue
            acts: list[Act] = []
            with self._apart(connection, "judging", **key), connection.transaction():
                acts = self._judge(connection, chunk, key)
            for act in acts:
                self._tell(act)
                if act.decision is Decision.PAUSED:
                    paused.add(chunk["job_id"])

    def _judge(self, connection: Connection, chunk: dict[str, Any], key: dict[str, Any]) -> list[Act]:
        error = chunk["last_error"]
        ordinals = [row["ordinal"] for row in queries.open_ordinals(connection, **key)]
        if len(ordinals) > 1:
            middle = ordinals[len(ordinals) // 2]
            second = queries.halve_chunk(connection, middle=middle, **key)
            reason = f"it went wrong alone ({error}): the documents from {middle} on are chunk {second} now"
            return [Act(Decision.HALVED, reason, **key)]
        if not ordinals:
            if not queries.close_chunk(connection, **key):
                return []  # it was cancelled meanwhile
            return [Act(Decision.CLOSED, "all its documents have rows", **key)]
        if chunk["failures_alone"] < POISON_FAILURES:
            queries.try_alone_again(connection, **key)
            return [Act(Decision.TRIED_AGAIN, f"one document is left of it, and it went wrong alone: {error}", **key)]
        reason = f"it went wrong {chunk['failures_alone']} times with nothing else at the engine: {error}"
        queries.write_poison(connection, ordinal=ordinals[0], reason=reason, worker=WRITER, **key)
        queries.close_chunk(connection, **key)
        return [
            Act(Decision.POISON, f"document {ordinals[0]}: {reason}", **key),
            *self._pause_poisoned(connection, chunk["job_id"]),
        ]

    def _pause_poisoned(self, connection: Connection, job_id: int) -> list[Act]:
        count, limit = queries.count_poison(connection, job_id=job_id), self._settings.poison_limit
        if count % limit:  # at the limit, and again after as many more, if a person let it go on
            return []
        reason = f"{count} of its documents took engine or worker down (GLEANER_POISON_LIMIT is {limit})"
        if not queries.pause_job(connection, job_id=job_id, reason=reason):
            return []
        return [Act(Decision.PAUSED, reason, job_id=job_id, count=count)]

    def _move_jobs_on(self, connection: Connection) -> None:
        for job in list(queries.jobs_to_move(connection)):
            with self._apart(connection, "moving it on", job_id=job["id"]):
                self._move_on(connection, job)

    def _move_on(self, connection: Connection, job: dict[str, Any]) -> None:
        if job["state"] == "cancelling":
            count = sum(cancel_open_chunks(connection, job["id"], WRITER))
            if count:
                words = f"{_chunks(count)} closed, because the job is being cancelled"
                self._tell(Act(Decision.CANCELLED, words, job_id=job["id"], count=count))
        state = close_job(connection, job["id"])
        if state:
            self._tell(Act(Decision.ENDED, f"no chunk of it is open: it is {state}", job_id=job["id"]))

    def _publish(self, connection: Connection) -> None:
        models = list(queries.waiting_models(connection))
        for row in models:
            model = row["model"]
            published = try_publish_waiting(connection, self._app, self._settings, model) if row["waiting"] else 0
            if published:
                words = f"{_chunks(published)} waited without a message"
                self._tell(Act(Decision.PUBLISHED, words, model=model, count=published))
            self._watch_queue(model, row["waiting"], row["held"])
        self._still = {row["model"]: self._still[row["model"]] for row in models if row["model"] in self._still}

    def _watch_queue(self, model: str, waiting: int, held: int) -> None:
        now = time.monotonic()
        since, before = self._still.get(model, (now, -1))
        if held or not waiting or waiting != before:
            self._still[model] = (now, waiting)
        elif now - since >= UNATTENDED_S:
            self._still[model] = (now, waiting)
            words = (
                f"{_chunks(waiting)} and {queued_messages(self._app, model):,} messages wait, and nobody has taken one "
                f"for {now - since:.0f} s: is a worker for this model running?"
            )
            self._tell(Act(Decision.UNATTENDED, words, model=model, count=waiting))


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _chunks(count: int) -> str:
    return f"{count:,} chunk" + ("" if count == 1 else "s")


def reconcile_once(settings: Settings, app: Celery, tell: Callable[[Act], None]) -> bool:
    """One pass. False, and nothing done, while another reconciler is at work.

    :raises GleanerError: when Postgres is not to be had.
    """
    with connect(settings, "producer reconcile") as connection:
        require_migrated(connection)
        if not queries.try_reconcile_lock(connection):
            return False
        Reconciler(settings, app, tell).one_pass(connection)
    return True
