"""One soak, from start to account.

1. Services, workers and a reconciler start; one job runs without faults, for the undisturbed rate.
2. Jobs come and go while faults strike, for the time that was asked for.
3. No more faults, and no more jobs than are missing of the documents asked for: everything must end by itself.
4. The account of every document.
"""

import random
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from ops.soak.account import take_account
from ops.soak.display import Display
from ops.soak.faults import Fault
from ops.soak.fleet import Fleet
from ops.soak.host import Host
from ops.soak.injector import Injector
from ops.soak.observer import Observer, Totals
from ops.soak.recovery import alone
from ops.soak.report import Report, by_kind, read_logs
from ops.soak.workload import Workload
from schemas.database import Connection
from schemas.errors import GleanerError

#: Share of the time with faults that the run without them takes, and the seconds it takes at most.
REFERENCE_SHARE, REFERENCE_MAX_S = 0.1, 60.0
#: Documents a second under faults, as a share of what the engines could: as found by trials with three workers. Sets
#: the engines' speed, so that the documents that were asked for last about as long as the faults.
DISTURBED_SHARE = 0.6
#: Times the undisturbed rate that what is left may take after the last fault, and seconds on top: for leases that run
#: out, quarantined chunks that go one after another, and workers that start.
SETTLE_FACTOR, SETTLE_S = 3.0, 90.0
#: Seconds between two looks.
LOOK_S = 0.25
#: The job without faults, and the size of its chunks.
REFERENCE, REFERENCE_CHUNK_SIZE = "reference", 64


@dataclass(frozen=True)
class Plan:
    """What was asked for."""

    minutes: float
    documents: int
    poison: int
    workers: int
    seed: int
    faults: Sequence[Fault]

    @property
    def seconds(self) -> float:
        """Seconds with faults."""
        return self.minutes * 60

    @property
    def rows_per_s(self) -> float:
        """Speed of each worker's engine."""
        return self.documents / self.seconds / self.workers / DISTURBED_SHARE

    @property
    def reference_documents(self) -> int:
        """Documents of the job without faults."""
        return int(self.rows_per_s * self.workers * min(REFERENCE_MAX_S, self.seconds * REFERENCE_SHARE)) + 1


class Interrupted(Exception):
    """Somebody wants an end."""


class Soak:
    """Runs once."""

    def __init__(self, plan: Plan, logs: Path | None, display: Display, interrupted: threading.Event) -> None:
        """
        :param logs: where the logs of all processes go; None: they are removed with everything else.
        :param interrupted: set from outside to bring the soak to an early end, with its account.
        """
        self._plan = plan
        self._logs = logs
        self._display = display
        self._interrupted = interrupted

    def run(self) -> Report:
        """Run it. However it ends, no process and no file but the logs is left.

        :raises GleanerError: (or what psycopg raises) when it could not be run at all.
        """
        with ExitStack() as stack:
            # Not in the current folder: Postgres, which root runs as another user, must reach it.
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gleaner-soak-", dir="/var/tmp")))
            folder.chmod(0o711)
            plan = self._plan
            self._display.say(f"seed {plan.seed}, {plan.workers} workers at {plan.rows_per_s:.1f} rows/s, in {folder}")
            logs = self._logs or folder / "logs"
            logs.mkdir(parents=True, exist_ok=True)
            self._host = Host(folder, logs)
            rng = random.Random(plan.seed)
            seeds = [random.Random(rng.getrandbits(64)) for _ in range(3)]
            self._fleet = Fleet(self._host, plan.workers, plan.rows_per_s, seeds[0])
            self._workload = Workload(self._host, plan.documents, plan.poison, seeds[1])
            self._observer = Observer(self._host)
            self._injector = Injector(self._host, self._fleet, self._observer, self._workload, seeds[2], plan.faults)
            # Last one first: faults are undone while the services can still be had.
            stack.callback(self._host.remove)
            stack.callback(self._observer.stop)
            stack.callback(self._fleet.stop)
            stack.callback(self._workload.stop)
            stack.callback(self._injector.stop, interrupt=True)
            return self._run()

    def _run(self) -> Report:
        plan = self._plan
        undisturbed = disturbed = faulty_s = 0.0
        settled_s: float | None = None
        found: list[str] = []
        try:
            self._display.begin("starting Postgres, Valkey and the workers", None)
            self._host.start()
            self._fleet.start()
            self._observer.start()
            undisturbed = self._reference()
            self._display.begin("faults", plan.seconds)
            first = self._totals()
            self._workload.start()
            self._injector.start()
            try:
                self._wait(lambda: False, plan.seconds)
            finally:
                self._injector.stop(interrupt=self._interrupted.is_set())
                last = self._totals()
                faulty_s = last.at - first.at
                disturbed = (last.rows - first.rows) / faulty_s
            self._workload.end()
            settled_s = self._settle(undisturbed)
            if settled_s is None:
                found.append("not everything ended by itself after the last fault")
        except Interrupted:
            self._workload.stop()
        return self._report(undisturbed, disturbed, faulty_s, settled_s, found)

    def _reference(self) -> float:
        """Documents a second without faults."""
        self._display.begin("without faults", None)
        job_id = self._workload.enqueue(REFERENCE, self._plan.reference_documents, REFERENCE_CHUNK_SIZE, 0)
        statement = (
            "SELECT total / extract(epoch FROM finished_at - started_at)::float AS rate FROM gleaner.jobs"
            " WHERE id = %s AND state = 'done'"
        )
        rates: list[float] = []

        def done() -> bool:
            row = self._host.ask(lambda connection: connection.execute(statement, [job_id]).fetchone())
            rates.extend([row["rate"]] if row else [])
            return row is not None

        if not self._wait(done, SETTLE_S + self._plan.reference_documents / self._plan.rows_per_s):
            raise GleanerError("the job without faults did not end: see the logs (--logs FOLDER keeps them)")
        return rates[0]

    def _settle(self, rate: float) -> float | None:
        """Wait until everything has ended; the seconds that it took, None if it did not."""
        self._display.begin("no more faults, all must end", None)

        def open_jobs(connection: Connection) -> bool:
            statement = "SELECT FROM gleaner.jobs WHERE state NOT IN ('done', 'cancelled') LIMIT 1"
            return connection.execute(statement).fetchone() is not None

        began = time.monotonic()
        left = self._totals().pending + max(0, self._plan.documents - self._workload.documents)

        def settled() -> bool:
            return self._workload.complete and not self._host.ask(open_jobs)

        within_s = SETTLE_S + SETTLE_FACTOR * left / rate
        return time.monotonic() - began if self._wait(settled, within_s) else None

    def _wait(self, holds: Callable[[], bool], within_s: float) -> bool:
        """Wait for something and show how it goes; whether it came in time.

        :raises Interrupted: somebody wants an end.
        """
        deadline = time.monotonic() + within_s
        while not holds():
            self._display.show(self._words())
            if time.monotonic() > deadline:
                return False
            if self._interrupted.wait(min(LOOK_S, max(0.0, deadline - time.monotonic()))):
                raise Interrupted
        return True

    def _words(self) -> str:
        totals, faults = self._observer.totals, self._observer.recoveries
        last = f", last {faults[-1].kind}" if faults else ""
        balanced = f"{len(self._observer.unbalanced)} UNBALANCED" if self._observer.unbalanced else "balanced"
        return (
            f"{totals.rows:,} of {totals.documents:,} rows, {len(faults)} faults ({self._observer.open_faults()} open"
            f"{last}), {balanced}"
        )

    def _totals(self) -> Totals:
        return self._host.ask(self._observer.read_totals)

    def _report(
        self, undisturbed: float, disturbed: float, faulty_s: float, settled_s: float | None, found: list[str]
    ) -> Report:
        self._display.begin("the account", None)
        interrupted = self._interrupted.is_set()
        self._observer.stop()
        recoveries = [fault for fault in self._observer.recoveries if fault.over_at is not None]

        def count(connection: Connection) -> None:
            self._observer.read_totals(connection)

        self._host.ask(count)
        account = self._host.ask(
            lambda connection: take_account(connection, self._workload.jobs, self._workload.retried)
        )
        found += account.faults(at_the_end=not interrupted)
        found += [
            f"the ledger of job {ledger['job_id']} did not balance: {ledger}" for ledger in self._observer.unbalanced
        ]
        found += [f"a fault could not be undone: {failure}" for failure in self._injector.failures]
        if self._workload.failure is not None:
            found.append(f"no job could be enqueued: {self._workload.failure}")
        if not interrupted:
            unrecovered = [fault for fault in recoveries if fault.recovered_at is None]
            found += [f"the work was not seen to go on after: {fault.kind} {fault.target}" for fault in unrecovered]
        began = min((fault.struck_at for fault in recoveries), default=0.0)
        return Report(
            seed=self._plan.seed,
            workers=self._plan.workers,
            rows_per_s=self._plan.rows_per_s,
            faulty_s=faulty_s,
            interrupted=interrupted,
            undisturbed_rate=undisturbed,
            disturbed_rate=disturbed,
            settled_s=settled_s,
            account=account,
            ledgers_read=self._observer.ledgers_read,
            unbalanced=self._observer.unbalanced,
            logs=read_logs(
                [self._host.logs / f"{worker.name}.log" for worker in self._fleet.workers],
                self._host.logs / "reconciler.log",
            ),
            worker_exits=self._fleet.exits(),
            missed=dict(self._injector.missed),
            kinds=by_kind(recoveries),
            faults=[
                {
                    "kind": fault.kind,
                    "target": fault.target,
                    "at_s": round(fault.struck_at - began, 2),
                    "lasted_s": round((fault.over_at or 0) - fault.struck_at, 2),
                    "recovered_s": None if fault.seconds is None else round(fault.seconds, 2),
                    "alone": alone(fault, recoveries),
                }
                for fault in recoveries
            ],
            faults_found=found,
        )
