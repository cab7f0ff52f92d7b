"""What is labelled: jobs of different sizes, chunk sizes and priorities, each enqueued when one before it has ended."""

import json
import random
import threading
from dataclasses import dataclass, field

from ops.soak.host import Host

#: Text of a document at which every engine of the soak dies.
POISON = "this document takes the engine down"
#: Shares of all documents that one job has: the smallest is over in seconds, the largest takes a tenth of the soak.
SHARES = (0.01, 0.02, 0.05, 0.1)
#: Documents of the smallest job: several chunks of any size but the largest.
MIN_DOCUMENTS = 100
CHUNK_SIZES = (16, 64, 256)
PRIORITIES = (0, 0, 0, 5, 10)
#: The job, by number, that holds poison; early, since each document of it takes a dozen deaths to find.
POISONED_JOB = 1
#: Jobs that have not ended, at least, so that priorities matter; and the share of all documents that waits in them, at
#: least, so that no engine runs dry.
LIVE_JOBS, LIVE_SHARE = 4, 0.1
#: Seconds between two looks at whether another job is wanted.
LOOK_S = 0.5

_LIVE = """
SELECT count(DISTINCT job.id) AS jobs, coalesce(sum(chunk.size), 0) AS documents
FROM gleaner.jobs AS job JOIN gleaner.chunks AS chunk ON chunk.job_id = job.id
WHERE job.state NOT IN ('done', 'cancelled') AND chunk.state NOT IN ('done', 'cancelled')
"""


@dataclass(frozen=True)
class JobPlan:
    """A job that is to be enqueued."""

    name: str
    documents: int
    chunk_size: int
    priority: int
    poisoned: frozenset[int] = field(default_factory=frozenset)


class Workload:
    """Enqueues jobs, by the CLI, and knows what became of each plan."""

    def __init__(self, host: Host, documents: int, poison: int, rng: random.Random) -> None:
        """
        :param documents: that the soak is to have at least.
        :param poison: how many of them take the engine down.
        """
        self._host = host
        self._documents = documents
        self._poison = poison
        self._rng = rng
        self._numbers = 0
        self._over = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._feed, name="workload", daemon=True)
        #: Plans by job id.
        self.jobs: dict[int, JobPlan] = {}
        #: Rows that were taken out to be tried again, by job.
        self.retried: dict[int, int] = {}
        #: What kept the workload from going on.
        self.failure: Exception | None = None

    @property
    def documents(self) -> int:
        """Documents of all jobs so far."""
        return sum(plan.documents for plan in self.jobs.values())

    @property
    def complete(self) -> bool:
        """Whether no more jobs will come."""
        return not self._thread.is_alive()

    def start(self) -> None:
        """Keep enough jobs going from now on."""
        self._thread.start()

    def end(self) -> None:
        """Enqueue no more than is missing of the documents that were asked for."""
        self._over.set()

    def stop(self) -> None:
        """Enqueue nothing more, and wait until that is so."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def enqueue(self, name: str, documents: int, chunk_size: int, priority: int) -> int:
        """Enqueue a job of the caller's choice; its id."""
        return self._enqueue(JobPlan(name, documents, chunk_size, priority))

    def _feed(self) -> None:
        try:
            while not self._stop.wait(LOOK_S) and not (self._over.is_set() and self.documents >= self._documents):
                if not self._enough():
                    self._enqueue(self._next())
        except Exception as error:
            self.failure = error

    def _enough(self) -> bool:
        row = self._host.ask(lambda connection: connection.execute(_LIVE).fetchone())
        assert row is not None
        return bool(row["jobs"] >= LIVE_JOBS and row["documents"] >= LIVE_SHARE * self._documents)

    def _next(self) -> JobPlan:
        number, self._numbers = self._numbers, self._numbers + 1
        size = max(MIN_DOCUMENTS, round(self._rng.choice(SHARES) * self._documents))
        chunk_size, priority = self._rng.choice(CHUNK_SIZES), self._rng.choice(PRIORITIES)
        poisoned = self._rng.sample(range(size), min(size, self._poison)) if number == POISONED_JOB else ()
        return JobPlan(f"job-{number}", size, chunk_size, priority, frozenset(poisoned))

    def _enqueue(self, plan: JobPlan) -> int:
        file = self._host.folder / f"{plan.name}.jsonl"
        with file.open("w", encoding="utf-8") as corpus:
            for ordinal in range(plan.documents):
                text = f"{plan.name}: package {ordinal} does one thing"
                record = {"id": ordinal, "text": f"{text}; {POISON}" if ordinal in plan.poisoned else text}
                corpus.write(json.dumps(record) + "\n")
        answer = self._host.insist(
            *("enqueue", str(file), "--schema", "packages", "--chunk-size", str(plan.chunk_size)),
            *("--priority", str(plan.priority)),
        )
        self.jobs[int(answer["job_id"])] = plan
        file.unlink()
        return int(answer["job_id"])
