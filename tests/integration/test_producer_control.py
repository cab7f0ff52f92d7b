"""Jobs cancelled, paused, put before others and tried again, with workers that are in the middle of them."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from worker_process import EnqueueJob, JobView, StartWorker, eventually

from producer import control
from producer.cli import COMMANDS
from schemas.database import Connection, queries
from schemas.pool import Pool, open_pool
from schemas.settings import Settings
from worker.lease import Lease, LeaseKeeper

#: Rows a second of a worker that is to be met in mid-chunk.
SLOW = 20
#: A broker that nobody listens at.
NO_BROKER = {"GLEANER_BROKER_URL": "redis://127.0.0.1:1/0"}

Call = Callable[..., Any]


@pytest.fixture
def answer(call_cli: Callable[..., Any]) -> Call:
    """Calls a command with --json and returns what it says."""

    def call(*arguments: str) -> Any:
        done = call_cli(*arguments, "--json")
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        assert done.stdout.count("\n") == 1
        return json.loads(done.stdout)

    return call


@pytest.fixture
def pool(settings: Settings) -> Iterator[Pool]:
    with open_pool(settings, "tests", size=4) as pool:
        yield pool


@pytest.fixture
def keeper(pool: Pool, settings: Settings) -> LeaseKeeper:
    """Claims as a worker does that gives nobody a share for its age."""
    return LeaseKeeper(pool, settings.model_copy(update={"fair_share": 0}), "hands")


def require_cancelled(job: JobView, ok: int | None = None) -> None:
    """Cancelled, every document one row, the ledger balanced, nothing held."""
    ledger = job.ledger()
    assert job.state() == "cancelled"
    assert ledger["balanced"]
    assert ledger["pending"] == 0
    assert ledger["ok"] + ledger["cancelled"] == ledger["total"]
    assert len({row["ordinal"] for row in job.labels()}) == len(job.labels()) == ledger["total"]
    assert {chunk["lease_owner"] for chunk in job.chunks()} == {None}
    for row in job.labels():
        if row["outcome"] == "cancelled":
            assert (row["reason_code"], row["engine_id"], row["tries"]) == ("cancelled", None, 0)
    if ok is not None:
        assert ledger["ok"] == ok


def fail_rows(database: Connection, job: JobView, outcomes: dict[int, str]) -> None:
    """Give rows of a job that is done another outcome."""
    for ordinal, outcome in outcomes.items():
        database.execute(
            "UPDATE gleaner.labels SET outcome = %s, label = NULL, reason_code = 'engine_error', reason = 'x',"
            " raw_output = 'what it said' WHERE job_id = %s AND ordinal = %s",
            [outcome, job.id, ordinal],
        )


def write_rows(database: Connection, job: JobView, lease: Lease, count: int) -> None:
    """Rows of a chunk, as its worker writes them."""
    for ordinal in range(lease.first_ordinal, lease.first_ordinal + count):
        database.execute(
            "INSERT INTO gleaner.labels (job_id, ordinal, chunk_no, outcome, label, dropped_tokens, parts, tries,"
            " attempt, worker) VALUES (%s, %s, %s, 'ok', '{}', 0, 1, 1, %s, 'hands')",
            [job.id, ordinal, lease.chunk_no, lease.attempt],
        )


# -- cancel ------------------------------------------------------------------------------------------------------------


def test_cancel_aborts_what_a_worker_does_and_keeps_what_is_finished(
    start_worker: StartWorker, enqueue_job: EnqueueJob, run_cli: Call
) -> None:
    documents = 2000  # a hundred seconds of work
    job = enqueue_job(documents, 500)
    worker = start_worker("--slots", "2", stub_rows_per_s=SLOW, write_interval_s=0.2)
    eventually(job.rows, "the first rows")
    began = time.monotonic()
    done = run_cli("cancel", str(job.id))
    assert (done.returncode, done.stderr) == (0, "")
    assert time.monotonic() - began < control.GIVE_BACK_S
    assert f"Job {job.id} is cancelled: 4 chunks closed" in done.stdout
    require_cancelled(job)
    assert 0 < job.ledger()["ok"] < documents / 2
    assert f"{job.ledger()['ok']} ok, {job.ledger()['cancelled']:,} cancelled" in done.stdout

    # The worker goes on with other work at once: nothing of the cancelled job is left at its engine.
    other = enqueue_job(10, 10, "--schema-name", "other")
    began = time.monotonic()
    eventually(other.done, "another job's end")
    assert time.monotonic() - began < documents / SLOW / 2
    other.require_whole()
    assert worker.terminate() == 0
    assert f"job {job.id} chunk" in worker.log()
    require_cancelled(job)


def test_cancel_without_a_worker_and_twice(enqueue_job: EnqueueJob, answer: Call, call_cli: Call) -> None:
    job = enqueue_job(25, 10)
    said = answer("cancel", str(job.id))
    assert said["counts"] == {
        "total": 25, "pending": 0, "ok": 0, "truncated": 0, "invalid": 0, "rejected": 0, "failed": 0, "cancelled": 25,
    }  # fmt: skip
    assert (said["state"], said["chunks_cancelled"], said["chunks_held"]) == ("cancelled", 3, 0)
    require_cancelled(job, ok=0)
    rows = job.labels()
    again = call_cli("cancel", str(job.id))
    assert (again.returncode, again.stderr) == (0, "")
    assert f"Job {job.id} was cancelled before" in again.stdout
    assert job.labels() == rows


def test_cancel_closes_large_chunks_one_by_one(enqueue_job: EnqueueJob, answer: Call, monkeypatch: Any) -> None:
    monkeypatch.setattr("producer.cancelling.BATCH_DOCUMENTS", 15)
    job = enqueue_job(40, 10)
    assert answer("cancel", str(job.id))["chunks_cancelled"] == 4
    require_cancelled(job, ok=0)


def test_cancel_killed_while_it_closes_chunks_is_ended_by_the_next(
    enqueue_job: EnqueueJob, start_cli: Call, answer: Call, database: Connection
) -> None:
    job = enqueue_job(250, 1)
    with database.transaction():
        database.execute("SELECT FROM gleaner.chunks WHERE job_id = %s AND chunk_no = 150 FOR UPDATE", [job.id])
        process = start_cli("cancel", str(job.id))
        cancelled = eventually(
            lambda: sum(chunk["state"] == "cancelled" for chunk in job.chunks()), "the first closed chunks"
        )
        process.kill()
        process.wait()
    # What Postgres was at when the command died ends, or goes: either way every chunk is open or closed.
    assert cancelled == 100
    assert job.state() == "cancelling"
    assert job.ledger()["balanced"]
    said = answer("cancel", str(job.id))
    assert said["counts"]["cancelled"] == 250
    require_cancelled(job, ok=0)


def test_cancel_says_what_a_worker_does_not_give_back_and_the_reconciler_ends_it(
    enqueue_job: EnqueueJob,
    keeper: LeaseKeeper,
    call_cli: Call,
    answer: Call,
    database: Connection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("producer.control.GIVE_BACK_S", 0.3)
    job = enqueue_job(30, 10)
    lease = keeper.claim(job.id, 1)
    assert lease is not None
    write_rows(database, job, lease, 3)
    done = call_cli("cancel", str(job.id))
    assert (done.returncode, done.stderr) == (0, "")
    assert "2 chunks closed, workers still hold 1, under leases that run out in 1:5" in done.stdout
    assert f"`producer cancel {job.id}` again" in done.stdout
    assert "3 ok" not in done.stdout.splitlines()[0]
    assert job.state() == "cancelling"
    assert job.ledger()["pending"] == 7
    held = answer("cancel", str(job.id))
    assert (held["state"], held["chunks_held"]) == ("cancelling", 1)
    assert held["held_until"] > "20"
    for command in ("pause", "resume"):
        refused = call_cli(command, str(job.id))
        assert refused.returncode == 1
        assert f"job {job.id} is being cancelled" in refused.stderr

    database.execute("UPDATE gleaner.chunks SET lease_until = now() - interval '1 second' WHERE state = 'running'")
    assert call_cli("reconcile", "--once").returncode == 0
    require_cancelled(job, ok=3)
    # Its worker comes back from the dead: its token is worth nothing.
    late = queries.write_rows(
        database, job_id=job.id, chunk_no=1, attempt=lease.attempt, worker="w", engine_id=1, rows="[]"
    )
    assert late["held"] is False


def test_a_job_that_finishes_first_is_done(enqueue_job: EnqueueJob, call_cli: Call, database: Connection) -> None:
    job = enqueue_job(4, 2)
    database.execute("UPDATE gleaner.chunks SET state = 'done'")
    done = call_cli("cancel", str(job.id))
    assert done.returncode == 0
    assert f"Job {job.id} is done: its last chunk was finished first" in done.stdout
    again = call_cli("cancel", str(job.id))
    assert (again.returncode, again.stdout) == (1, "")
    assert f"job {job.id} is done: every document has its row" in again.stderr


# -- pause and resume --------------------------------------------------------------------------------------------------


def test_a_paused_job_is_left_alone_until_it_is_resumed(
    start_worker: StartWorker, enqueue_job: EnqueueJob, answer: Call, call_cli: Call
) -> None:
    job = enqueue_job(120, 20)
    start_worker("--slots", "1", stub_rows_per_s=SLOW * 2, write_interval_s=0.2)
    eventually(job.rows, "the first rows")
    paused = answer("pause", str(job.id))
    assert (paused["state"], paused["chunks_held"], paused["documents_held"]) == ("paused", 1, 20)
    assert paused["state_reason"].startswith("asked for by ")
    eventually(lambda: "running" not in {chunk["state"] for chunk in job.chunks()}, "the end of what was in work")
    done = sum(chunk["state"] == "done" for chunk in job.chunks())
    assert job.rows() == done * 20 < 120
    assert "was paused before (asked for by" in call_cli("pause", str(job.id)).stdout

    other = enqueue_job(10, 10, "--schema-name", "other")
    eventually(other.done, "another job, meanwhile")
    assert job.rows() == done * 20
    assert job.state() == "paused"

    resumed = answer("resume", str(job.id))
    assert (resumed["was_paused"], resumed["state"], resumed["reason"]) == (True, "running", paused["state_reason"])
    assert resumed["published"] > 0
    again = call_cli("resume", str(job.id))
    assert again.returncode == 0
    assert f"Job {job.id} is not paused: it is running" in again.stdout
    eventually(job.done, "the job's end")
    job.require_whole()


def test_pausing_before_the_first_claim_leaves_a_queued_job(enqueue_job: EnqueueJob, answer: Call) -> None:
    job = enqueue_job(4, 2)
    assert answer("pause", str(job.id))["chunks_held"] == 0
    assert answer("resume", str(job.id))["state"] == "queued"


def test_a_job_that_a_worker_refused_is_resumed_like_any_other(
    enqueue_job: EnqueueJob, call_cli: Call, database: Connection
) -> None:
    job = enqueue_job(4, 2)
    queries.pause_job(database, job_id=job.id, reason="refused by gpu1@here: the engine thinks\naloud")
    status = call_cli("status", str(job.id)).stdout
    note = f"job {job.id} is paused (refused by gpu1@here: the engine thinks aloud): `producer resume {job.id}`"
    assert status.startswith(f"Job {job.id}: paused\n  {note}")
    assert note in call_cli("jobs").stdout
    assert note in call_cli("status").stdout
    resumed = call_cli("resume", str(job.id))
    assert "it was paused: refused by gpu1@here: the engine thinks aloud" in resumed.stdout
    assert "published" not in resumed.stdout  # the messages are there already
    assert database.execute("SELECT state_reason FROM gleaner.jobs").fetchone() == {"state_reason": None}


def test_resume_without_a_broker_says_that_it_stands(enqueue_job: EnqueueJob, call_cli: Call) -> None:
    job = enqueue_job(4, 2)
    call_cli("pause", str(job.id))
    done = call_cli("resume", str(job.id), env=NO_BROKER)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"job {job.id} may go on: `producer reconcile` publishes the messages" in done.stderr
    assert job.state() == "queued"


def test_watch_says_once_that_a_job_is_paused(enqueue_job: EnqueueJob, start_cli: Call, call_cli: Call) -> None:
    job = enqueue_job(4, 2)
    call_cli("pause", str(job.id))
    process = start_cli("watch", str(job.id), "--json")
    assert json.loads(process.stdout.readline())["state"] == "paused"
    call_cli("resume", str(job.id))
    assert json.loads(process.stdout.readline())["state"] == "queued"
    call_cli("cancel", str(job.id))
    stdout, stderr = process.communicate(timeout=60)
    assert json.loads(stdout.splitlines()[-1])["state"] == "cancelled"
    assert stderr.count(f"`producer resume {job.id}` lets it go on") == 1


# -- priority ----------------------------------------------------------------------------------------------------------


def test_a_job_with_a_higher_priority_goes_first_though_its_messages_come_last(
    start_worker: StartWorker, enqueue_job: EnqueueJob
) -> None:
    low = enqueue_job(40, 4)
    high = enqueue_job(20, 4, "--schema-name", "urgent", "--priority", "5")
    start_worker("--slots", "1", fair_share=0)
    eventually(lambda: low.done() and high.done(), "the end of both")
    low.require_whole()
    high.require_whole()
    assert max(row["created_at"] for row in high.labels()) < min(row["created_at"] for row in low.labels())


def test_priority_moves_the_chunks_of_a_job_that_is_being_labelled(
    enqueue_job: EnqueueJob, keeper: LeaseKeeper, answer: Call
) -> None:
    first, second = enqueue_job(8, 2), enqueue_job(8, 2, "--schema-name", "second")
    assert claimed_job(keeper, first, 0) == first.id
    assert answer("priority", str(second.id), "3") == {"job_id": second.id, "priority": 3, "before": 0}
    assert [claimed_job(keeper, first, chunk) for chunk in (1, 2)] == [second.id, second.id]
    assert answer("priority", str(second.id), "-3")["before"] == 3
    assert [claimed_job(keeper, second, chunk) for chunk in (2, 3)] == [first.id, first.id]


def claimed_job(keeper: LeaseKeeper, job: JobView, chunk_no: int) -> int:
    lease = keeper.claim(job.id, chunk_no)
    assert lease is not None
    return lease.job_id


def test_a_low_priority_starves_nobody(enqueue_job: EnqueueJob, pool: Pool, settings: Settings) -> None:
    keeper = LeaseKeeper(pool, settings.model_copy(update={"fair_share": 0.5}), "hands")
    low = enqueue_job(100, 1)
    high = enqueue_job(100, 1, "--schema-name", "urgent", "--priority", "1000")
    claimed = [claimed_job(keeper, high, chunk) for chunk in range(60)]
    # Each is a coin: sixty heads or tails in a row don't happen.
    assert {low.id, high.id} == set(claimed)


def test_enqueue_sets_a_priority_only_where_one_is_given(
    call_cli: Call, write_corpus: Callable[..., Path], database: Connection
) -> None:
    corpus = write_corpus([{"id": 1, "text": "t"}])

    def priority(*options: str) -> int:
        assert call_cli("enqueue", corpus, "--schema", "papers", *options).returncode == 0
        return int(database.execute("SELECT priority FROM gleaner.jobs").fetchone()["priority"])  # type: ignore[index]

    assert [priority(), priority("--priority", "-7"), priority()] == [0, -7, -7]
    assert "priority    -7" in call_cli("status", "1").stdout
    shown = call_cli("jobs").stdout
    assert "priority" in shown
    assert "-7" in shown


# -- retry -------------------------------------------------------------------------------------------------------------


def test_retry_labels_only_what_was_asked_for_and_keeps_what_it_was(
    start_worker: StartWorker, enqueue_job: EnqueueJob, answer: Call, call_cli: Call, database: Connection
) -> None:
    job = enqueue_job(50, 10)
    start_worker()
    eventually(job.done, "the job's end")
    again = {3: "failed", 4: "failed", 21: "truncated", 49: "failed"}
    fail_rows(database, job, {**again, 30: "invalid"})
    before = {row["ordinal"]: row for row in job.labels()}
    database.execute("UPDATE gleaner.jobs SET started_at = started_at - interval '1 hour'")

    said = answer("retry", str(job.id), "--outcome", "failed, truncated", "--chunk-size", "2")
    assert (said["rows"], said["published"]) == (4, 2)
    eventually(job.done, "its end once more")
    after = {row["ordinal"]: row for row in job.labels()}
    assert {ordinal for ordinal in after if after[ordinal] != before[ordinal]} == set(again)
    assert {after[ordinal]["outcome"] for ordinal in again} == {"ok"}
    ledger = job.ledger()
    assert (ledger["balanced"], ledger["ok"], ledger["invalid"], ledger["failed"]) == (True, 49, 1, 0)
    assert [(c["first_ordinal"], c["last_ordinal"]) for c in job.chunks()[5:]] == [(3, 4), (21, 49)]

    history = database.execute("SELECT * FROM gleaner.label_history ORDER BY ordinal").fetchall()
    assert [(h["job_id"], h["ordinal"], h["row"]["outcome"]) for h in history] == [
        (job.id, ordinal, outcome) for ordinal, outcome in again.items()
    ]
    assert {h["row"]["raw_output"] for h in history} == {"what it said"}
    counts = database.execute("SELECT final_counts FROM gleaner.jobs").fetchone()
    assert counts["final_counts"]["ok"] == 49  # type: ignore[index]
    assert "Tried again: 4 rows" in call_cli("status", str(job.id)).stdout
    # Its clock is that of the newest run, and so are the rows that its rate is of.
    standing = answer("status", str(job.id))
    assert standing["running_s"] < 3600
    assert standing["rows_per_s"] == pytest.approx(4 / standing["running_s"], abs=0.01)


def test_retry_after_cancel_finishes_the_job(
    start_worker: StartWorker, enqueue_job: EnqueueJob, keeper: LeaseKeeper, call_cli: Call, database: Connection
) -> None:
    job = enqueue_job(30, 10)
    lease = keeper.claim(job.id, 1)
    assert lease is not None
    write_rows(database, job, lease, 4)
    keeper.release(lease, "enough")
    call_cli("cancel", str(job.id))
    require_cancelled(job, ok=4)
    retried = call_cli("retry", str(job.id), "--outcome", "cancelled", "--chunk-size", "20")
    assert retried.returncode == 0
    assert f"Job {job.id}: 26 rows (cancelled) will be tried again" in retried.stdout
    assert [chunk["size"] for chunk in job.chunks()[3:]] == [24, 6]
    start_worker()
    eventually(job.done, "the job's end")
    job.require_whole()
    assert sum(row["worker"] == "hands" for row in job.labels()) == 4


def test_a_job_with_rows_left_cancelled_ends_as_cancelled_again(
    start_worker: StartWorker, enqueue_job: EnqueueJob, call_cli: Call, database: Connection
) -> None:
    job = enqueue_job(20, 10)
    call_cli("cancel", str(job.id))
    fail_rows(database, job, {2: "failed"})
    assert call_cli("retry", str(job.id), "--outcome", "failed").returncode == 0
    start_worker()
    eventually(lambda: job.state() == "cancelled", "the job's end")
    require_cancelled(job, ok=1)


def test_a_retry_may_be_cancelled_and_tried_again(enqueue_job: EnqueueJob, answer: Call) -> None:
    job = enqueue_job(20, 10)
    answer("cancel", str(job.id))
    for _ in range(2):
        assert answer("retry", str(job.id), "--outcome", "cancelled")["rows"] == 20
        assert job.ledger()["pending"] == 20
        assert answer("cancel", str(job.id))["counts"]["cancelled"] == 20
        require_cancelled(job, ok=0)


def test_retry_without_a_row_leaves_the_job_as_it_is(enqueue_job: EnqueueJob, call_cli: Call) -> None:
    job = enqueue_job(4, 2)
    call_cli("cancel", str(job.id))
    done = call_cli("retry", str(job.id), "--outcome", "failed,invalid")
    assert done.returncode == 0
    assert f"Job {job.id} has no row that is invalid or failed: it stays cancelled" in done.stdout
    require_cancelled(job, ok=0)


def test_retry_of_what_was_over_long_says_that_it_will_be_again(
    enqueue_job: EnqueueJob, call_cli: Call, database: Connection
) -> None:
    job = enqueue_job(4, 2)
    call_cli("cancel", str(job.id))
    database.execute(
        "UPDATE gleaner.labels SET outcome = 'rejected', reason_code = 'over_long' WHERE ordinal IN (0, 1)"
    )
    done = call_cli("retry", str(job.id), "--outcome", "rejected")
    assert "Warning: 2 rows over_long: they will be again unless workers have more context" in done.stdout


def test_retry_without_a_broker_is_left_to_the_reconciler(enqueue_job: EnqueueJob, call_cli: Call) -> None:
    job = enqueue_job(4, 2)
    call_cli("cancel", str(job.id))
    done = call_cli("retry", str(job.id), "--outcome", "cancelled", env=NO_BROKER)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"4 rows of job {job.id} will be tried again: `producer reconcile` publishes the messages" in done.stderr
    assert "127.0.0.1:1" in done.stderr
    assert job.state() == "queued"
    assert job.ledger()["pending"] == 4


# -- words -------------------------------------------------------------------------------------------------------------


def test_enqueue_says_why_nothing_happens_with_a_job_that_is_stopped(
    call_cli: Call, write_corpus: Callable[..., Path]
) -> None:
    call = ["enqueue", write_corpus([{"id": 1, "text": "t"}]), "--schema", "papers"]
    call_cli(*call)
    call_cli("pause", "1")
    assert "Warning: job 1 is paused (asked for by" in call_cli(*call).stdout
    call_cli("resume", "1")
    call_cli("cancel", "1")
    cancelled = call_cli(*call)
    assert "Job 1 is cancelled: nothing left to publish" in cancelled.stdout
    assert "`producer retry 1 --outcome cancelled` labels what was left" in cancelled.stdout


def test_status_explains_quarantine(enqueue_job: EnqueueJob, call_cli: Call, database: Connection) -> None:
    job = enqueue_job(4, 2)
    assert "quarantined" not in call_cli("status", str(job.id)).stdout
    database.execute("UPDATE gleaner.chunks SET state = 'quarantined' WHERE chunk_no = 0")
    assert "quarantined: went wrong too often; each is tried alone" in call_cli("status", str(job.id)).stdout


@pytest.mark.parametrize("command", ["cancel", "pause", "resume", "priority", "retry"])
def test_an_unknown_job(call_cli: Call, command: str) -> None:
    assert command in COMMANDS
    more = {"priority": ["1"], "retry": ["--outcome", "failed"]}.get(command, [])
    done = call_cli(command, "7", *more)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: no job 7: there is none yet: start one with `producer enqueue`\n"


@pytest.mark.parametrize(
    ("call", "code", "words"),
    [
        (["retry", "1", "--outcome", "ok"], 2, "a row that is ok has its label; give some of truncated, invalid"),
        (["retry", "1", "--outcome", "lost"], 2, "'lost' is no outcome"),
        (["retry", "1", "--outcome", ","], 2, "--outcome: give some of truncated"),
        (["retry", "1"], 2, "--outcome"),
        (["retry", "1", "--outcome", "failed", "--chunk-size", "0"], 2, "--chunk-size"),
        (["retry", "1", "--outcome", "failed"], 1, "job 1 is queued: only a job that has ended"),
        (["priority", "1", "1001"], 2, "1001 is not between -1000 and 1000"),
        (["priority", "1", "high"], 2, "'high' is not a whole number"),
        (["enqueue", "x", "--schema", "papers", "--priority", "-1001"], 2, "-1001 is not between"),
        (["cancel", "one"], 2, "'one' is not a whole number"),
    ],
)
def test_wrong_use_is_said(enqueue_job: EnqueueJob, call_cli: Call, call: list[str], code: int, words: str) -> None:
    job = enqueue_job(2, 2)
    done = call_cli(*call)
    assert (done.returncode, done.stdout) == (code, "")
    assert words in " ".join(done.stderr.replace("│", " ").split())
    assert (job.state(), job.ledger()["pending"]) == ("queued", 2)


@pytest.mark.parametrize(
    ("state", "remedy"),
    [("done", "producer retry 1 --outcome failed"), ("cancelled", "producer retry 1 --outcome can")],
)
def test_a_job_that_has_ended_is_not_held_or_moved(
    enqueue_job: EnqueueJob, call_cli: Call, database: Connection, state: str, remedy: str
) -> None:
    enqueue_job(2, 2)
    database.execute("UPDATE gleaner.jobs SET state = %s", [state])
    for call in (["pause", "1"], ["resume", "1"], ["priority", "1", "2"]):
        done = call_cli(*call)
        assert (done.returncode, done.stdout) == (1, "")
        assert f"job 1 is {state}" in done.stderr
        assert remedy in done.stderr
