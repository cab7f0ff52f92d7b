"""What a worker refuses at start, in one line; and what it never labels."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis
from worker_process import WAIT_S, EnqueueJob, StartWorker, eventually

from schemas.database import Connection, queries
from schemas.queue import ChunkMessage, create_app, publish, queue_name
from schemas.settings import Settings

NOWHERE = "127.0.0.1:9"  # the discard port: nobody listens


def run_worker(*arguments: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """A command of the CLI to its end, with the stub engine."""
    given = {f"GLEANER_{name.upper()}": value for name, value in variables.items()}
    return subprocess.run(
        [sys.executable, "-m", "worker", *arguments],
        env={**os.environ, "GLEANER_ENGINE": "stub", **given},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )


@pytest.mark.parametrize("pool", ["prefork", "solo", "gevent"])
def test_a_pool_that_cant_share_the_engine(clean_environment: None, pool: str) -> None:
    result = run_worker("start", "--pool", pool)
    assert result.returncode == 2
    assert result.stderr == (
        f"error: the pool {pool!r} can't share one resident engine between chunks: use --pool threads\n"
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--name", "a@b"], "error: --name 'a@b'"),
        (["--log-level", "LOUD"], "error: unknown log level"),
        (["--profile", "h300"], "h300"),
    ],
)
def test_wrong_use(clean_environment: None, arguments: list[str], said: str) -> None:
    result = run_worker("start", *arguments)
    assert result.returncode == 2
    assert said in result.stderr


def test_no_postgres(environment: dict[str, str]) -> None:
    result = run_worker("start", database_url=f"postgresql://gleaner@{NOWHERE}/gleaner")
    assert result.returncode == 1
    assert result.stderr.startswith(f"error: no connection to Postgres at gleaner@{NOWHERE}/gleaner: ")
    assert result.stderr.count("\n") == 1


def test_a_database_without_tables(environment: dict[str, str], empty_database_url: str) -> None:
    result = run_worker("start", database_url=empty_database_url)
    assert result.returncode == 1
    assert "producer db upgrade" in result.stderr
    assert result.stderr.count("\n") == 1


def test_no_broker(environment: dict[str, str]) -> None:
    result = run_worker("start", broker_url=f"redis://{NOWHERE}/0")
    assert result.returncode == 1
    assert result.stderr.startswith(f"error: no connection to the broker at {NOWHERE}: ")
    assert result.stderr.count("\n") == 1


def test_a_second_worker_of_the_same_name(start_worker: StartWorker) -> None:
    first = start_worker("--name", "gpu0")
    eventually(lambda: "ready" in first.log(), "the first worker")
    second = start_worker("--name", "gpu0")
    assert second.exit_code() == 1
    assert second.log().startswith("error: a worker named gpu0 is already running on ")
    assert second.log().count("\n") == 1
    other = start_worker("--name", "gpu1")
    eventually(lambda: "ready" in other.log(), "a worker of another name")
    assert [first.terminate(), other.terminate()] == [0, 0]


def test_another_models_job_is_never_labelled(
    start_worker: StartWorker, enqueue_job: EnqueueJob, settings: Settings
) -> None:
    """Neither from its own queue nor when a message of it is put into the worker's."""
    theirs = enqueue_job(8, 4)
    mine = enqueue_job(8, 4, "--model", "other-model")
    with create_app(settings) as app:
        publish(app, "other-model", [ChunkMessage(job_id=theirs.id, chunk_no=0, first_ordinal=0, last_ordinal=3)])
    worker = start_worker(model="other-model")
    eventually(mine.done, "the end of its own job")
    eventually(lambda: "is not to be claimed" in worker.log(), "the refusal")
    assert worker.terminate() == 0
    mine.require_whole()
    assert theirs.rows() == 0
    assert [(chunk["state"], chunk["attempt"]) for chunk in theirs.chunks()] == [("queued", 0)] * 2
    assert f"model {settings.model}" in worker.log()
    with redis.Redis.from_url(settings.broker_url.get_secret_value()) as client:
        assert client.llen(settings.broker_key_prefix + queue_name(settings.model)) == 2
        assert client.llen(settings.broker_key_prefix + queue_name("other-model")) == 0


def test_a_failed_canary_pauses_its_job_and_stops_no_other(
    start_worker: StartWorker, enqueue_job: EnqueueJob, tmp_path: Path, database: Connection
) -> None:
    # The stub looks at `minimum` alone, so this is a label schema that it does not keep to.
    number = {"type": "integer", "minimum": 5, "exclusiveMinimum": 7, "maximum": 9}
    schema = tmp_path / "strict.json"
    schema.write_text(json.dumps({"type": "object", "properties": {"n": number}, "required": ["n"]}))
    bad = enqueue_job(8, 4, schema=schema)
    good = enqueue_job(8, 4)
    worker = start_worker()
    eventually(good.done, "the end of the other job")
    eventually(lambda: bad.state() == "paused", "the pause")
    assert worker.terminate() == 0
    good.require_whole()
    bad.require_given_back()
    assert bad.rows() == 0
    reason = queries.job_control(database, job_id=bad.id)["state_reason"]
    assert reason.startswith("refused by w1@")
    assert ": the engine does not keep to the label schema strict: $.n: 5 " in reason


def test_check_says_what_a_submitter_needs_without_any_service(clean_environment: None) -> None:
    result = run_worker("check", "--json")
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["healthy"] is True
    assert found["outcomes"] == {"ok": 16}
    for name in ("engine", "version", "model", "context_tokens", "sequences_a_step", "structured_backend"):
        assert found[name]
    for name in ("startup_s", "documents_per_s", "output_tokens_per_s", "host_memory_gib"):
        assert found[name] >= 0
    assert "healthy" in run_worker("check", "--schema", "packages").stdout


def test_check_says_when_the_node_is_not_healthy(clean_environment: None) -> None:
    for variables, said in (
        ({"stub_dies_after_rows": "5"}, "engine is gone"),
        ({"max_model_len": "256"}, "only 0 of 16 documents"),
    ):
        result = run_worker("check", "--json", **variables)
        assert result.returncode == 1
        assert json.loads(result.stdout)["healthy"] is False
        assert said in json.loads(result.stdout)["error"]
    shown = run_worker("check", stub_dies_after_rows="1")
    assert shown.returncode == 1
    assert "engine is gone" in shown.stdout.partition("not healthy: ")[2]
    assert run_worker("check", "--schema", "nonesuch").returncode == 2


def test_bench_prints_a_table_and_writes_json(
    clean_environment: None, write_corpus: Callable[..., Path], tmp_path: Path
) -> None:
    corpus = write_corpus([{"id": n, "text": f"package {n}"} for n in range(20)])
    out = tmp_path / "bench.json"
    arguments: list[Any] = ["--schema", "packages", "--in-flight", "4", "--seconds", "2", "--json", out]
    result = run_worker("bench", corpus, *arguments)
    assert result.returncode == 0, result.stderr
    assert "docs/s" in result.stdout
    points = json.loads(out.read_text())["points"]
    assert [point["in_flight"] for point in points] == [1, 2, 4, 4, 1, 2, 4]
    assert {point["prefix_cache"] for point in points} == {"cold", "warm"}
    missing = run_worker("bench", "nowhere.jsonl", "--schema", "packages")
    assert (missing.returncode, missing.stderr.count("\n")) == (2, 1)
    dead = run_worker("bench", corpus, *arguments, stub_dies_after_rows="9")
    assert dead.returncode == 1
    assert "the engine did not last" in dead.stderr
