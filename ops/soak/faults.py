"""The faults: what each does, and how often it is drawn."""

import random
import shutil
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import psycopg
import redis

from ops.soak.fleet import Fleet, Member
from ops.soak.host import CommandFailed, Host, patiently
from ops.soak.observer import Observer
from ops.soak.recovery import Recovery
from ops.soak.workload import Workload
from schemas.queue import queue_name

#: Seconds between two signals to one worker: the second comes while it gives its chunks back.
SECOND_SIGTERM_S = (0.05, 1.0)
#: Seconds for which a worker is stopped, in leases: half of the time longer than its lease holds.
STOPPED_LEASES = (0.2, 1.8)
#: Seconds that a server is down: a restart, or an outage that lasts longer than a lease.
RESTART_S = (0.0, 1.0)
OUTAGE_S = (3.0, 10.0)
#: Seconds for which a job is paused.
PAUSED_S = (1.0, 5.0)
#: What a job's priority is changed to.
NEW_PRIORITIES = (0, 20)
#: Messages that are delivered twice in one go, at most: the queue would double again and again.
MAX_DUPLICATES = 10_000
#: Share of the waiting messages that is lost in one go.
LOST_SHARE = (0.2, 0.8)
#: Requests that an engine answers before it dies or hangs.
ENGINE_LIVES = (20, 400)
#: Seconds to wait for an engine that is to die: another fault may come first, and a worker with nothing to do never
#: gets there.
ENGINE_ENDS_WITHIN_S = 60.0
#: Seconds by which the end of a worker is noticed late: it looks at its engine once a second, then writes and leaves.
LEAVING_S = 2.0
#: Exit code of a worker whose engine is gone.
ENGINE_LOST = 70
#: The job that is cancelled: seconds of the whole fleet's work, since a command of the CLI takes one to two; in many
#: chunks, before all others.
CANCELLED_S = 8
CANCELLED_CHUNK_SIZE = 16
CANCELLED_PRIORITY = 100
#: Seconds until it must have begun, and until it must have ended once cancelled.
ENDS_WITHIN_S = 120.0
#: Seconds between two looks at anything that is waited for.
LOOK_S = 0.1

_ENDED = ("done", "cancelled")


class Holds(StrEnum):
    """What a fault needs for itself while it lasts."""

    WORKER = "worker"  #: one of the workers
    BROKER = "broker"
    POSTGRES = "postgres"
    RECONCILER = "reconciler"
    JOB = "job"  #: one that is paused or moved
    EXTRA = "extra job"  #: the one that is cancelled


class Missed(Exception):
    """The fault did not come to pass: its target was gone, or another fault came first."""


@dataclass
class Stage:
    """What a fault is done to, and by which numbers."""

    host: Host
    fleet: Fleet
    observer: Observer
    workload: Workload
    rng: random.Random
    #: Set when the soak is interrupted: whatever waits goes on at once.
    interrupted: threading.Event
    kind: str
    worker: Member
    #: Once it has struck.
    recovery: Recovery | None = None

    def strike(self, worker: Member | None = None, target: str = "", seconds_ago: float = 0.0) -> None:
        """The fault strikes now: one worker, or all of them."""
        name = worker.name if worker is not None else None
        self.recovery = self.observer.strike(self.kind, target or name or "", name, seconds_ago)

    def over(self) -> None:
        """What was done has been undone."""
        assert self.recovery is not None
        self.recovery.over_at = time.monotonic()

    def pause(self, bounds: tuple[float, float]) -> None:
        """Let a random time go by."""
        self.interrupted.wait(self.rng.uniform(*bounds))

    def wait(self, holds: Callable[[], bool], within_s: float) -> None:
        """Wait for something.

        :raises Missed: it does not come.
        """
        deadline = time.monotonic() + within_s
        while not holds():
            if time.monotonic() > deadline or self.interrupted.is_set():
                raise Missed
            time.sleep(LOOK_S)

    def broker(self) -> redis.Redis:
        """A client of the broker."""
        return redis.Redis.from_url(self.host.valkey.url)

    @property
    def queue(self) -> str:
        """The key of the queue."""
        return self.host.settings.broker_key_prefix + queue_name(self.host.settings.model)


def _signal(stage: Stage, *signals: signal.Signals) -> None:
    stage.strike(stage.worker)
    for number, signum in enumerate(signals):
        if number:
            stage.pause(SECOND_SIGTERM_S)
        if not stage.worker.signal(signum) and not number:
            raise Missed
    stage.over()


def _kill(stage: Stage) -> None:
    _signal(stage, signal.SIGKILL)


def _terminate(stage: Stage) -> None:
    _signal(stage, signal.SIGTERM)


def _terminate_twice(stage: Stage) -> None:
    _signal(stage, signal.SIGTERM, signal.SIGTERM)


def _stop(stage: Stage) -> None:
    lease_s = stage.host.settings.lease_s
    stage.strike(stage.worker)
    stage.worker.signal(signal.SIGSTOP)
    stage.pause((STOPPED_LEASES[0] * lease_s, STOPPED_LEASES[1] * lease_s))
    stage.worker.signal(signal.SIGCONT)
    stage.over()


def _end_engine(stage: Stage, variable: str) -> None:
    """Start the worker anew with an engine that has not long to live, and wait for the worker to leave."""
    stage.worker.arm(**{variable: str(stage.rng.randint(*ENGINE_LIVES))})
    start = stage.worker.starts
    stage.worker.signal(signal.SIGTERM)
    stage.wait(lambda: stage.worker.starts > start + 1, ENGINE_ENDS_WITHIN_S)
    if stage.worker.exits[start] != ENGINE_LOST:
        raise Missed
    stage.strike(stage.worker, seconds_ago=LEAVING_S)
    stage.over()


def _engine_dies(stage: Stage) -> None:
    _end_engine(stage, "GLEANER_STUB_DIES_AFTER_ROWS")


def _engine_hangs(stage: Stage) -> None:
    _end_engine(stage, "GLEANER_STUB_HANGS_AFTER_ROWS")


def _cut_broker(stage: Stage) -> None:
    stage.strike()
    with stage.broker() as client:
        for kind in ("normal", "pubsub"):
            client.client_kill_filter(_type=kind, skipme=True)
    stage.over()


def _broker_down(stage: Stage, keep_data: bool) -> None:
    valkey = stage.host.valkey
    stage.strike()
    valkey.kill()
    stage.pause(RESTART_S)
    if not keep_data:
        shutil.rmtree(valkey.data_dir / "data")
    patiently(valkey.start)
    stage.over()


def _kill_broker(stage: Stage) -> None:
    _broker_down(stage, keep_data=True)


def _kill_broker_and_its_data(stage: Stage) -> None:
    _broker_down(stage, keep_data=False)


def _flush(stage: Stage) -> None:
    with stage.broker() as client:
        stage.strike()
        client.flushall()
    stage.over()


def _duplicate(stage: Stage) -> None:
    with stage.broker() as client:
        messages = client.lrange(stage.queue, 0, MAX_DUPLICATES - 1)
        if not messages:
            raise Missed
        stage.strike(target=f"{len(messages)} messages")
        client.lpush(stage.queue, *messages)
    stage.over()


def _lose(stage: Stage) -> None:
    with stage.broker() as client:
        waiting = int(client.llen(stage.queue))
        count = int(waiting * stage.rng.uniform(*LOST_SHARE))
        if not count:
            raise Missed
        stage.strike(target=f"{count} of {waiting} messages")
        client.rpop(stage.queue, count)
    stage.over()


def _postgres_down(stage: Stage, end: Callable[[], None], down_s: tuple[float, float]) -> None:
    stage.strike()
    end()
    stage.pause(down_s)
    patiently(stage.host.postgres.start)
    stage.over()


def _restart_postgres(stage: Stage) -> None:
    _postgres_down(stage, stage.host.postgres.stop, RESTART_S)


def _kill_postgres(stage: Stage) -> None:
    _postgres_down(stage, stage.host.postgres.kill, RESTART_S)


def _postgres_away(stage: Stage) -> None:
    _postgres_down(stage, stage.host.postgres.stop, OUTAGE_S)


def _cut_postgres(stage: Stage) -> None:
    with psycopg.connect(stage.host.postgres.superuser_url, autocommit=True) as connection:
        stage.strike()
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    stage.over()


def _kill_reconciler(stage: Stage) -> None:
    stage.strike(target="reconciler")
    stage.fleet.reconciler.signal(signal.SIGKILL)
    stage.over()


def _tell(stage: Stage, job_id: int, moot: tuple[str, ...], *command: str) -> bool:
    """Give a command about a job, again while a service is away. False if the job came into a ``moot`` state first."""
    statement = "SELECT state FROM gleaner.jobs WHERE id = %s"

    def once() -> bool:
        try:
            stage.host.command(*command)
        except CommandFailed:
            job = stage.host.ask(lambda connection: connection.execute(statement, [job_id]).fetchone())
            if job is None or job["state"] not in moot:
                raise
            return False
        return True

    return patiently(once)


def _any_job(stage: Stage) -> int:
    """A job that is being worked on.

    :raises Missed: there is none.
    """
    statement = "SELECT id FROM gleaner.jobs WHERE state IN ('queued', 'running') ORDER BY id"
    jobs = stage.host.ask(lambda connection: [row["id"] for row in connection.execute(statement)])
    if not jobs:
        raise Missed
    return int(stage.rng.choice(jobs))


def _pause(stage: Stage) -> None:
    job_id = _any_job(stage)
    if not _tell(stage, job_id, _ENDED, "pause", str(job_id)):
        raise Missed
    stage.strike(target=f"job {job_id}")
    stage.pause(PAUSED_S)
    _tell(stage, job_id, _ENDED, "resume", str(job_id))
    stage.over()


def _reorder(stage: Stage) -> None:
    job_id, priority = _any_job(stage), stage.rng.randint(*NEW_PRIORITIES)
    stage.strike(target=f"job {job_id} to {priority}")
    if not _tell(stage, job_id, _ENDED, "priority", str(job_id), str(priority)):
        raise Missed
    stage.over()


def _cancel_and_retry(stage: Stage) -> None:
    """A small job cancelled in mid-run; once it has ended, what was left of it is tried again."""
    name = f"extra-{stage.rng.getrandbits(32):08x}"
    documents = int(CANCELLED_S * stage.fleet.rows_per_s)
    job_id = stage.workload.enqueue(name, documents, CANCELLED_CHUNK_SIZE, CANCELLED_PRIORITY)

    def ledger() -> dict[str, Any]:
        statement = "SELECT state, pending, cancelled FROM gleaner.ledger WHERE job_id = %s"
        return stage.host.ask(lambda connection: connection.execute(statement, [job_id]).fetchone()) or {}

    stage.wait(lambda: ledger()["pending"] < documents, ENDS_WITHIN_S)
    stage.strike(target=f"job {job_id}")
    if not _tell(stage, job_id, ("done",), "cancel", str(job_id)):
        raise Missed
    stage.over()
    stage.wait(lambda: ledger()["state"] in _ENDED, ENDS_WITHIN_S)
    left = ledger()["cancelled"]
    if left:
        stage.workload.retried[job_id] = left
        # When its answer was lost, the job has been opened, and will not be again.
        _tell(stage, job_id, ("queued", "running", "done"), "retry", str(job_id), "--outcome", "cancelled")


@dataclass(frozen=True)
class Fault:
    """A kind of fault. ``weight``: how often it is drawn, beside the others'."""

    kind: str
    weight: int
    holds: Holds
    do: Callable[[Stage], None]


FAULTS = (
    Fault("worker: SIGKILL", 10, Holds.WORKER, _kill),
    Fault("worker: SIGTERM", 8, Holds.WORKER, _terminate),
    Fault("worker: SIGTERM twice", 5, Holds.WORKER, _terminate_twice),
    Fault("worker: SIGSTOP, then SIGCONT", 8, Holds.WORKER, _stop),
    Fault("worker: its engine dies", 6, Holds.WORKER, _engine_dies),
    Fault("worker: its engine hangs", 4, Holds.WORKER, _engine_hangs),
    Fault("broker: all connections cut", 6, Holds.BROKER, _cut_broker),
    Fault("broker: SIGKILL, back with its data", 4, Holds.BROKER, _kill_broker),
    Fault("broker: SIGKILL, back without its data", 3, Holds.BROKER, _kill_broker_and_its_data),
    Fault("broker: FLUSHALL", 4, Holds.BROKER, _flush),
    Fault("broker: waiting messages doubled", 5, Holds.BROKER, _duplicate),
    Fault("broker: waiting messages lost", 5, Holds.BROKER, _lose),
    Fault("Postgres: restarted", 4, Holds.POSTGRES, _restart_postgres),
    Fault("Postgres: SIGKILL, started again", 4, Holds.POSTGRES, _kill_postgres),
    Fault("Postgres: away for 3 to 10 s", 3, Holds.POSTGRES, _postgres_away),
    Fault("Postgres: all connections cut", 5, Holds.POSTGRES, _cut_postgres),
    Fault("reconciler: SIGKILL", 5, Holds.RECONCILER, _kill_reconciler),
    Fault("job: paused and resumed", 4, Holds.JOB, _pause),
    Fault("job: priority changed", 4, Holds.JOB, _reorder),
    Fault("job: cancelled, its rows retried", 3, Holds.EXTRA, _cancel_and_retry),
)
