"""The account: every document of every job against the rows that are there."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ops.soak.workload import JobPlan
from schemas.database import Connection

_DOCUMENTS = """
SELECT
    (
        SELECT count(*) FROM gleaner.jobs AS job
        JOIN gleaner.documents AS document ON document.corpus_id = job.corpus_id
    ) AS documents,
    count(*) FILTER (WHERE is_open) AS unfinished,
    count(*) FILTER (WHERE NOT is_open) AS lost
FROM (
    SELECT EXISTS (
        SELECT FROM gleaner.chunks AS chunk
        WHERE chunk.job_id = job.id AND document.ordinal BETWEEN chunk.first_ordinal AND chunk.last_ordinal
          AND chunk.state IN ('queued', 'running', 'quarantined')
    ) AS is_open
    FROM gleaner.jobs AS job
    JOIN gleaner.documents AS document ON document.corpus_id = job.corpus_id
    LEFT JOIN gleaner.labels AS label ON label.job_id = job.id AND label.ordinal = document.ordinal
    WHERE label.job_id IS NULL
) AS without_row
"""
# From the table itself, so that an index that is not what it should be after a crash hides nothing.
_ROWS = """
SELECT count(*) AS rows, coalesce(sum(label.copies - 1), 0)::bigint AS doubled,
    count(*) FILTER (WHERE document.ordinal IS NULL) AS stray
FROM (SELECT job_id, ordinal, count(*) AS copies FROM gleaner.labels GROUP BY job_id, ordinal) AS label
JOIN gleaner.jobs AS job ON job.id = label.job_id
LEFT JOIN gleaner.documents AS document ON document.corpus_id = job.corpus_id AND document.ordinal = label.ordinal
"""
_OUTCOMES = """
SELECT job_id, outcome, coalesce(reason_code, '') AS reason_code, array_agg(ordinal ORDER BY ordinal) AS ordinals
FROM gleaner.labels WHERE outcome <> 'ok' GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
"""
_HISTORY = "SELECT job_id, count(*) AS rows FROM gleaner.label_history GROUP BY job_id"
_JOBS = "SELECT id, state, state_reason FROM gleaner.jobs WHERE state NOT IN ('done', 'cancelled') ORDER BY id"
_CLAIMS = """
SELECT count(*) AS chunks, coalesce(sum(greatest(attempt - 1, 0)), 0)::bigint AS again FROM gleaner.chunks
"""


@dataclass(frozen=True)
class Account:
    """What is there, and what should be.

    A row is written once. One that was tried again has been moved to the history, so that the history must hold as
    many rows as were tried again: one more has been written twice.
    """

    documents: int
    rows: int
    #: Documents without a row that nobody would ever look at again.
    lost: int
    #: Documents without a row whose chunk is still open.
    unfinished: int
    #: Rows beyond one a document.
    doubled: int
    #: Rows of no document.
    stray: int
    #: Rows in the history beyond those that were tried again, or missing there.
    history_off: int
    #: Jobs that have not ended, with their state and its reason.
    open_jobs: dict[int, str] = field(default_factory=dict)
    #: Documents that hold poison and were found; that hold none and were taken for it; whose row says anything else.
    poison_found: int = 0
    poison_missed: int = 0
    taken_for_poison: int = 0
    not_ok: dict[str, int] = field(default_factory=dict)
    chunks: int = 0
    claimed_again: int = 0

    def faults(self, *, at_the_end: bool) -> list[str]:
        """What is wrong, in words.

        :param at_the_end: whether everything should have ended.
        """
        found = [
            (self.lost, "documents are lost: they have no row, and their chunk is finished"),
            (self.doubled, "rows are doubled"),
            (self.stray, "rows belong to no document"),
            (self.history_off, "rows of the history are not explained by what was tried again"),
        ]
        if at_the_end:
            found += [
                (self.unfinished, "documents have no row, and the time is up"),
                (self.poison_missed, "documents with poison got another row than `failed` for it"),
                *((count, f"rows are {what}, and nothing explains it") for what, count in self.not_ok.items()),
            ]
        words = [f"{count:,} {what}" for count, what in found if count]
        if at_the_end:
            words += [f"job {job_id} has not ended: {state}" for job_id, state in self.open_jobs.items()]
        return words


def take_account(connection: Connection, plans: Mapping[int, JobPlan], retried: Mapping[int, int]) -> Account:
    """Count everything.

    :param plans: what each job is made of. :param retried: rows that were tried again, by job.
    """
    with connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        connection.execute("SET LOCAL statement_timeout = 0")
        documents = connection.execute(_DOCUMENTS).fetchone()
        history = {row["job_id"]: int(row["rows"]) for row in connection.execute(_HISTORY)}
        jobs = connection.execute(_JOBS).fetchall()
        others = connection.execute(_OUTCOMES).fetchall()
        claims = connection.execute(_CLAIMS).fetchone()
        for scan in ("indexscan", "indexonlyscan", "bitmapscan"):
            connection.execute(f"SET LOCAL enable_{scan} = off")
        rows = connection.execute(_ROWS).fetchone()
    assert documents is not None
    assert rows is not None
    assert claims is not None
    poison = {(job_id, ordinal) for job_id, plan in plans.items() for ordinal in plan.poisoned}
    called = {(row["job_id"], n) for row in others if row["reason_code"] == "poison" for n in row["ordinals"]}
    not_ok: dict[str, int] = {}
    for row in others:
        if row["reason_code"] != "poison":
            what = f"{row['outcome']} ({row['reason_code']})"
            not_ok[what] = not_ok.get(what, 0) + len(row["ordinals"])
    return Account(
        documents=documents["documents"],
        rows=rows["rows"] + rows["doubled"],
        lost=documents["lost"],
        unfinished=documents["unfinished"],
        doubled=rows["doubled"],
        stray=rows["stray"],
        history_off=sum(abs(history.get(job, 0) - retried.get(job, 0)) for job in history.keys() | retried.keys()),
        open_jobs={row["id"]: f"{row['state']} {row['state_reason'] or ''}".strip() for row in jobs},
        poison_found=len(called & poison),
        poison_missed=len(poison - called),
        taken_for_poison=len(called - poison),
        not_ok=not_ok,
        chunks=claims["chunks"],
        claimed_again=claims["again"],
    )
