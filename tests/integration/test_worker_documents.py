"""Documents on their way through the whole product with the stub engine: real abstracts, and ones that do not fit."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from worker_process import JobView, StartWorker, eventually

from schemas.database import Connection

#: Tokens of the stub's context: the instructions of `packages` take about 120, and 350 are kept for a label.
CONTEXT = 700
#: Words of the long document: about 2,000 tokens to the stub.
LONG = " ".join(f"word{n:04d}" for n in range(900))


def test_five_hundred_abstracts_end_in_one_row_each(
    start_worker: StartWorker,
    run_cli: Callable[..., Any],
    shared_corpus: Callable[[str], Path],
    database: Connection,
    tmp_path: Path,
) -> None:
    corpus = tmp_path / "arxiv.jsonl"
    corpus.write_bytes(b"".join(shared_corpus("arxiv_titled.jsonl").read_bytes().splitlines(keepends=True)[:500]))
    enqueue = ("enqueue", corpus, "--schema", "papers", "--id-field", "id", "--text-field", "abstract", "--json")
    first = json.loads(run_cli(*enqueue).stdout)
    worker = start_worker()
    assert run_cli("watch", str(first["job_id"])).returncode == 0
    JobView(database, first["job_id"]).require_whole()
    seen = database.execute("SELECT count(*) AS n, count(DISTINCT document_id) AS ids FROM labels.papers").fetchone()
    assert seen == {"n": 500, "ids": 500}

    again = json.loads(run_cli(*enqueue).stdout)
    assert (again["job_id"], again["created"], again["published"]) == (first["job_id"], False, 0)
    assert worker.terminate() == 0


@pytest.mark.parametrize(
    ("policy", "outcome", "whole"),
    [
        ("reject", "rejected", True),
        ("truncate-tail", "ok", False),
        ("truncate-head", "ok", False),
        ("truncate-middle", "ok", False),
        ("split", "ok", True),
    ],
)
def test_a_document_that_does_not_fit_goes_by_the_policy_and_its_row_says_so(
    policy: str,
    outcome: str,
    whole: bool,
    start_worker: StartWorker,
    run_cli: Callable[..., Any],
    write_corpus: Callable[..., Path],
    database: Connection,
) -> None:
    corpus = write_corpus([{"id": "short", "text": "a short one"}, {"id": "long", "text": LONG}])
    result = run_cli("enqueue", corpus, "--schema", "packages", "--over-long", policy, "--json")
    job = JobView(database, json.loads(result.stdout)["job_id"])
    worker = start_worker(max_model_len=CONTEXT)
    eventually(job.done, "the job is done")
    assert worker.terminate() == 0
    assert job.ledger()["balanced"]
    rows = {
        row["document_id"]: row
        for row in database.execute("SELECT * FROM labels.packages WHERE job_id = %s", [job.id]).fetchall()
    }
    assert (rows["short"]["outcome"], rows["short"]["dropped_tokens"], rows["short"]["parts"]) == ("ok", 0, 1)
    long = rows["long"]
    assert long["outcome"] == outcome
    assert (long["dropped_tokens"] == 0) == whole
    assert (long["parts"] > 1) == (policy == "split")
    assert (long["reason_code"] == "over_long") == (policy == "reject")


def test_a_job_takes_the_only_model_that_is_served(
    start_worker: StartWorker, run_cli: Callable[..., Any], write_corpus: Callable[..., Path], database: Connection
) -> None:
    corpus = write_corpus([{"id": 1, "text": "one"}])
    serving = start_worker(model="only-one")
    registered = "SELECT count(*) AS n FROM gleaner.engines"
    eventually(lambda: database.execute(registered).fetchall()[0]["n"] == 1, "the worker says what it serves")
    first = json.loads(run_cli("enqueue", corpus, "--schema", "packages", "--json").stdout)
    assert first["model"] == "only-one"
    eventually(JobView(database, first["job_id"]).done, "the job is done")

    other = start_worker(model="another")
    eventually(lambda: database.execute(registered).fetchall()[0]["n"] == 2, "the other worker says what it serves")
    ambiguous = run_cli("enqueue", corpus, "--schema", "packages", "--json")
    assert ambiguous.returncode == 2
    assert "another, only-one" in ambiguous.stderr
    named = json.loads(run_cli("enqueue", corpus, "--schema", "packages", "--model", "another", "--json").stdout)
    assert named["model"] == "another"
    eventually(JobView(database, named["job_id"]).done, "the named model's job is done")
    assert serving.terminate() == other.terminate() == 0


def test_a_template_takes_metadata_and_rejects_the_document_that_lacks_it(
    start_worker: StartWorker, run_cli: Callable[..., Any], write_corpus: Callable[..., Path], database: Connection
) -> None:
    corpus = write_corpus([{"id": "with", "text": "one", "title": "t" * 400}, {"id": "without", "text": "two"}])
    result = run_cli("enqueue", corpus, "--schema", "packages", "--template", "{title}: {text}", "--json")
    job = JobView(database, json.loads(result.stdout)["job_id"])
    worker = start_worker()
    eventually(job.done, "the job is done")
    assert worker.terminate() == 0
    taken, lacking = job.labels()
    assert taken["outcome"] == "ok"
    assert taken["prompt_tokens"] > 100  # the title's 400 characters and the instructions
    assert (lacking["outcome"], lacking["reason_code"]) == ("rejected", "missing_field")
