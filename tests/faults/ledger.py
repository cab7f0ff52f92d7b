"""A job as Postgres has it, through outages of Postgres, and the account of every document at its end."""

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import psycopg
from courier import Courier
from fleet import WAIT_S, eventually
from jsonschema import Draft202012Validator

from schemas.database import Connection, connect
from schemas.errors import DatabaseUnavailable
from schemas.settings import Settings

#: Seconds between two tries to reach Postgres.
RETRY_S = 0.1
#: Seconds for the messages that are too many to be taken and found out.
SETTLE_S = 30.0


class Job:
    """A job that a test has enqueued. Looks at Postgres itself, never through the code that is tested."""

    def __init__(self, settings: Settings, job_id: int, documents: int) -> None:
        """:param documents: how many the test has put into the corpus."""
        self.id = job_id
        self.documents = documents
        self._settings = settings
        self._connection: Connection | None = None

    def ask(self, statement: str, /, **parameters: Any) -> list[dict[str, Any]]:
        """The rows of a statement, in which ``%(job)s`` is this job; asked again while Postgres is away."""
        deadline = time.monotonic() + WAIT_S
        while True:
            try:
                if self._connection is None or self._connection.closed:
                    self._connection = connect(self._settings, "fault tests")
                answer = self._connection.execute(statement, {"job": self.id, **parameters})
                return answer.fetchall() if answer.description else []
            except (psycopg.OperationalError, psycopg.InterfaceError, DatabaseUnavailable):
                if time.monotonic() > deadline:
                    raise
                if self._connection is not None:
                    self._connection.close()
                time.sleep(RETRY_S)

    def state(self) -> str:
        return str(self.ask("SELECT state FROM gleaner.jobs WHERE id = %(job)s")[0]["state"])

    def rows(self, outcome: str | None = None) -> int:
        """Rows so far, with any outcome or this one."""
        statement = "SELECT count(*) AS n FROM gleaner.labels WHERE job_id = %(job)s"
        return int(self.ask(statement + (" AND outcome = %(outcome)s" if outcome else ""), outcome=outcome)[0]["n"])

    def chunks(self) -> list[dict[str, Any]]:
        return self.ask("SELECT * FROM gleaner.chunks WHERE job_id = %(job)s ORDER BY chunk_no")

    def attempts(self) -> int:
        """The most claims that one of its chunks took."""
        return max(chunk["attempt"] for chunk in self.chunks())

    def held(self) -> int:
        """Chunks that workers hold."""
        return sum(chunk["state"] == "running" for chunk in self.chunks())

    def labels(self) -> list[dict[str, Any]]:
        return self.ask("SELECT * FROM gleaner.labels WHERE job_id = %(job)s ORDER BY ordinal")

    def wait_for_rows(self, count: int) -> None:
        """Wait until so many rows are there."""
        eventually(lambda: self.rows() >= count, f"{count} rows are there")

    def wait_for_end(self, state: str = "done", within_s: float = WAIT_S) -> None:
        """Wait until the job has ended, in this state."""
        eventually(lambda: self.state() in ("done", "cancelled"), "the job's end", within_s)
        assert self.state() == state

    def close(self) -> None:
        """Let go of the connection."""
        if self._connection is not None:
            self._connection.close()


#: Enqueues a job: documents, documents a chunk, texts by ordinal of documents that are not like the others.
Enqueue = Callable[..., Job]


def assert_nothing_lost(
    job: Job, courier: Courier | None, *, held: int = 0, state: str = "done", **outcomes: int
) -> None:
    """Every document of an ended job has exactly one row, and nobody is owed anything.

    :param courier: None where no worker is left to empty the queue.
    :param held: messages that the fault may leave with the broker as delivered and not acknowledged: those that killed
        workers had. They come back when the visibility timeout ends, and find nothing to claim.
    :param outcomes: rows by outcome other than ``ok``.
    """
    assert job.state() == state
    ledger = job.ask("SELECT * FROM gleaner.ledger WHERE job_id = %(job)s")[0]
    assert ledger["balanced"]
    assert (ledger["total"], ledger["pending"]) == (job.documents, 0)
    _assert_one_row_a_document(job)
    _assert_chunks_closed(job)
    labels = job.labels()
    _assert_labels_fit(job, labels)

    expected = {"ok": job.documents - sum(outcomes.values()), **outcomes}
    counted = Counter(label["outcome"] for label in labels)
    assert counted == {outcome: rows for outcome, rows in expected.items() if rows}
    final = job.ask("SELECT final_counts FROM gleaner.jobs WHERE id = %(job)s")[0]["final_counts"]
    assert {outcome: rows for outcome, rows in final.items() if rows} == counted

    if courier is not None:
        eventually(lambda: courier.queued() == 0, "messages that are too many are taken", SETTLE_S)
        eventually(lambda: courier.held() <= held, f"at most {held} messages are unacknowledged", SETTLE_S)


def _assert_one_row_a_document(job: Job) -> None:
    pairs = """
        SELECT count(*) FILTER (WHERE label.ordinal IS NULL) AS missing,
            count(*) FILTER (WHERE document.ordinal IS NULL) AS extra, count(*) AS pairs
        FROM (
            SELECT document.ordinal FROM gleaner.jobs AS job
            JOIN gleaner.documents AS document ON document.corpus_id = job.corpus_id WHERE job.id = %(job)s
        ) AS document
        FULL JOIN (SELECT ordinal FROM gleaner.labels WHERE job_id = %(job)s) AS label USING (ordinal)
    """
    assert job.ask(pairs) == [{"missing": 0, "extra": 0, "pairs": job.documents}]


def _assert_chunks_closed(job: Job) -> None:
    chunks = sorted(job.chunks(), key=lambda chunk: chunk["first_ordinal"])
    for chunk in chunks:
        assert chunk["state"] in ("done", "cancelled")
        assert (chunk["lease_owner"], chunk["lease_until"]) == (None, None)
    # One after the other without a gap: halving loses no document and gives none to two chunks.
    ends = [-1, *(chunk["last_ordinal"] for chunk in chunks)]
    assert [chunk["first_ordinal"] for chunk in chunks] == [end + 1 for end in ends[:-1]]
    assert ends[-1] == job.documents - 1
    assert sum(chunk["size"] for chunk in chunks) == job.documents


def _assert_labels_fit(job: Job, labels: list[dict[str, Any]]) -> None:
    spec = job.ask(
        "SELECT spec.json_schema FROM gleaner.jobs AS job JOIN gleaner.label_specs AS spec"
        " ON spec.id = job.label_spec_id WHERE job.id = %(job)s"
    )[0]
    schema = Draft202012Validator(spec["json_schema"])
    for label in labels:
        if label["outcome"] == "ok":
            schema.validate(label["label"])
        else:
            assert label["label"] is None
            assert label["reason"]
