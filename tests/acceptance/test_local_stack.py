"""`make up`, `make demo` and `make down` as their recipes call them, with the stub engine, in a folder of their own."""

import base64
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from dotenv import dotenv_values

REPOSITORY = Path(__file__).parents[2]
#: Seconds for a command of the stack; starting all of it takes about ten.
COMMAND_S = 120

Local = Callable[..., subprocess.CompletedProcess[str]]


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "ops.local", *arguments]


@pytest.fixture
def variables(tmp_path: Path) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("GLEANER_")}
    return {**inherited, "GLEANER_STATE_DIR": str(tmp_path / "state"), "PYTHONPATH": str(REPOSITORY)}


@pytest.fixture
def local(variables: dict[str, str], tmp_path: Path) -> Iterator[Local]:
    """Runs ``python -m ops.local ARGS``; whatever is still up at the end is stopped and removed."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command(*arguments),
            env=variables,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
            check=False,
        )

    yield run
    ended = run("down", "--delete-data")
    assert ended.returncode == 0, ended.stdout + ended.stderr


def leftovers(tmp_path: Path) -> list[str]:
    """Command lines of processes that name the test's folder, or were started in it."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            line = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            place = (process / "cwd").resolve(strict=True)
        except OSError:
            continue
        if int(process.name) != os.getpid() and (str(tmp_path) in line or place.is_relative_to(tmp_path)):
            found.append(line)
    return found


def signal_worker(local: Local, signum: signal.Signals) -> None:
    """Signal the worker itself, and not what starts it again."""
    supervisor = json.loads(local("status", "--json").stdout)["worker"]["pid"]
    (worker,) = Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()
    os.kill(int(worker), signum)


def fetch(url: str, user: str = "", password: str = "") -> tuple[int, Any]:
    request = urllib.request.Request(url)
    if user:
        credentials = base64.b64encode(f"{user}:{password}".encode()).decode()
        request.add_header("Authorization", f"Basic {credentials}")
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            body = answer.read()
            return answer.status, json.loads(body) if body.startswith(b"{") else body
    except urllib.error.HTTPError as error:
        with error:
            return error.code, None


def test_up_shows_chunks_in_flower_and_down_leaves_nothing(
    local: Local, variables: dict[str, str], tmp_path: Path
) -> None:
    variables["GLEANER_RECONCILE_S"] = "0.5"
    up = local("up", "--engine", "stub")
    assert up.returncode == 0, up.stdout + up.stderr
    parts = json.loads(local("status", "--json").stdout)
    assert {name for name, part in parts.items() if part["running"]} == {
        "Postgres", "Valkey", "worker", "reconciler", "flower",
    }  # fmt: skip
    settings = {name: value or "" for name, value in dotenv_values(tmp_path / "state" / "local.env").items()}
    flower = f"http://127.0.0.1:{settings['GLEANER_FLOWER_PORT']}"
    user, password = settings["GLEANER_FLOWER_USER"], settings["GLEANER_FLOWER_PASSWORD"]
    assert len(password) >= 20
    assert fetch(flower)[0] == 401
    assert fetch(flower, user, "wrong")[0] == 401
    assert fetch(flower, user, password)[0] == 200

    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(json.dumps({"id": n, "text": f"thing {n}"}) + "\n" for n in range(40)))
    enqueued = subprocess.run(
        [sys.executable, "-m", "producer", "enqueue", str(corpus), "--schema", "packages", "--chunk-size=16", "--json"],
        env={**variables, **settings}, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=COMMAND_S,
    )  # fmt: skip
    job = json.loads(enqueued.stdout)["job_id"]
    shown: list[dict[str, Any]] = []
    deadline = time.monotonic() + 30
    while len(shown) < 4 and time.monotonic() < deadline:
        _, tasks = fetch(f"{flower}/api/tasks", user, password)
        shown = [task for task in (tasks or {}).values() if task["state"] == "SUCCESS"]
        time.sleep(0.2)
    (row,) = [task for task in shown if task["uuid"] == f"job-{job}"]
    assert (row["name"], row["result"]) == ("gleaner.job", "done: 40/40 documents, 0 chunks in work")
    assert row["kwargs"] == f"job {job}: packages_v1 over corpus, stub"
    shown.remove(row)
    assert sorted(task["kwargs"] for task in shown) == [
        f"job {job}, chunk 0, rows 0-15",
        f"job {job}, chunk 1, rows 16-31",
        f"job {job}, chunk 2, rows 32-39",
    ]
    assert {task["name"] for task in shown} == {f"label job {job}"}

    with psycopg.connect(settings["GLEANER_ANALYST_URL"]) as analyst:
        assert analyst.execute("SELECT count(*) FROM labels.packages WHERE outcome = 'ok'").fetchone() == (40,)
        assert analyst.execute("SELECT bool_and(balanced) FROM gleaner.ledger").fetchone() == (True,)
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            analyst.execute("SELECT * FROM gleaner.documents")

    assert local("down").returncode == 0
    assert leftovers(tmp_path) == []


def test_a_worker_that_dies_is_started_again_and_down_stops_that_one_too(local: Local, tmp_path: Path) -> None:
    assert local("up", "--engine", "stub").returncode == 0
    signal_worker(local, signal.SIGKILL)
    log = tmp_path / "state" / "logs" / "worker.log"
    deadline = time.monotonic() + COMMAND_S
    while log.read_text().count("engine stub 1 serves") < 2:
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)
    assert "ended (exit code 137): starting it again in 1 s" in log.read_text()
    assert local("status").returncode == 0
    assert local("down").returncode == 0
    assert leftovers(tmp_path) == []


def test_a_part_that_ended_by_itself_is_shown_with_what_it_said(local: Local, tmp_path: Path) -> None:
    assert local("up", "--engine", "stub").returncode == 0
    signal_worker(local, signal.SIGTERM)
    deadline = time.monotonic() + COMMAND_S
    while (status := local("status")).returncode == 0:
        assert time.monotonic() < deadline
    assert status.returncode == 1
    assert "worker ended by itself. End of " in status.stdout
    assert "ended (exit code 0): not started again" in status.stdout


def test_the_demo_ends_by_itself_and_shows_every_kind_of_end(local: Local, tmp_path: Path) -> None:
    demo = local("demo", "--engine", "stub")
    assert demo.returncode == 0, demo.stdout + demo.stderr
    for said in (
        "60 total = 0 pending + 59 ok + 0 truncated + 0 invalid + 1 rejected + 0 failed + 0 cancelled: balanced",
        "duplicate_id", "invalid_json", "missing_text", "over_long", "empty", "nul_replaced", "surrogate_repl",
        "documents per second", "Flower", "psql",
    ):  # fmt: skip
        assert said in demo.stdout
    assert leftovers(tmp_path) == []

    again = local("demo", "--engine", "stub")
    assert again.returncode == 0, again.stdout + again.stderr
    assert "Job 1 was finished before: nothing to label." in again.stdout
    assert "starting the engine" not in again.stdout
    assert "documents per second" not in again.stdout
    assert leftovers(tmp_path) == []


def test_a_broken_env_file_keeps_no_stack_from_stopping(local: Local, tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("GLEANER_CHUNKSIZE=10\n")
    for arguments in (["down"], ["status"], ["logs"]):
        done = local(*arguments)
        assert "CHUNKSIZE" not in done.stdout + done.stderr
    up = local("up", "--engine", "stub")
    assert up.returncode == 2
    assert "GLEANER_CHUNKSIZE is no setting" in up.stdout


def test_a_wrong_engine_is_said_before_anything_is_installed() -> None:
    # As typed, not as a make within `make test`, which tells of the folders it enters.
    typed = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    done = subprocess.run(
        ["make", "demo", "ENGINE=stubb"],
        cwd=REPOSITORY, env=typed, capture_output=True, text=True, timeout=COMMAND_S, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stdout.splitlines() == ["error: ENGINE=stubb: use vllm or stub"]


@pytest.mark.parametrize("said", ["starting Postgres", "starting the engine", "starting Flower", "job 1"])
def test_ctrl_c_stops_all_that_the_demo_started(
    said: str, local: Local, variables: dict[str, str], tmp_path: Path
) -> None:
    process = subprocess.Popen(
        command("demo", "--engine", "stub"),
        env={**variables, "GLEANER_STUB_ROWS_PER_S": "2", "PYTHONUNBUFFERED": "1"},
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(said):
            break
    process.send_signal(signal.SIGINT)
    rest, _ = process.communicate(timeout=COMMAND_S)
    assert process.returncode == 130
    assert "Traceback" not in rest
    assert leftovers(tmp_path) == []
