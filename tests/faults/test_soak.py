"""The soak of `make soak`, in little; and its account, which must find what it is there to find."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ops.soak.account import Account, take_account
from ops.soak.workload import JobPlan
from schemas.database import Connection

#: Seconds for a soak of a few seconds: services and workers start, everything ends, all on a busy machine.
WITHIN_S = 150
#: Documents of the job that the account is tried on, in chunks of ten.
DOCUMENTS, CHUNK_SIZE = 40, 10

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start_soak(tmp_path: Path) -> Iterator[Start]:
    """Starts `python -m ops.soak` with two workers; without poison, which takes long to find."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        few = ("--workers", "2", "--poison", "0", "--seed", "11", "--logs", str(tmp_path / "logs"))
        command = [sys.executable, "-m", "ops.soak", *few, *arguments]
        started.append(subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            process.terminate()  # not killed: it has processes of its own to end
        process.communicate(timeout=WITHIN_S)


def _left_in(folder: str) -> list[str]:
    """Processes that run in a folder or on one."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command, place = (process / "cmdline").read_bytes().decode(errors="replace"), (process / "cwd").readlink()
        except OSError:  # it ended meanwhile, or is nobody's business of ours
            continue
        if folder in command or folder in str(place):
            found.append(command)
    return found


def _folder(output: str) -> str:
    return next(line for line in output.splitlines() if line.startswith("seed ")).rpartition(" in ")[2]


def test_a_short_soak_loses_and_doubles_nothing(start_soak: Start, tmp_path: Path) -> None:
    soak = start_soak(
        *("--minutes", "0.15", "--documents", "400", "--only", "SIGKILL", "--json", str(tmp_path / "report.json"))
    )
    output, _ = soak.communicate(timeout=WITHIN_S)
    assert soak.returncode == 0, output
    assert "| **documents lost** | **0** |" in output
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["faults_found"] == []
    assert report["faults"]
    assert {fault["kind"] for fault in report["faults"]} == set(report["kinds"])
    assert all(fault["recovered_s"] is not None for fault in report["faults"])
    assert report["undisturbed_rate"] > 0
    assert report["disturbed_rate"] > 0
    assert report["account"]["documents"] >= 400
    assert report["account"]["rows"] == report["account"]["documents"]
    assert report["account"]["not_ok"] == {}
    assert report["ledgers_read"] > 1
    assert not _left_in(_folder(output))
    assert not Path(_folder(output)).exists()


def test_ctrl_c_ends_everything_and_reports_what_was_seen(start_soak: Start) -> None:
    soak = start_soak("--minutes", "0.4", "--documents", "2000", "--only", "SIGSTOP")
    assert soak.stdout is not None
    seen = []
    for line in soak.stdout:
        seen.append(line)
        if line.startswith("faults: 0:"):  # some ten seconds of it
            break
    soak.send_signal(signal.SIGINT)
    rest, _ = soak.communicate(timeout=WITHIN_S)
    assert soak.returncode == 130, rest
    assert "| **rows doubled** | **0** |" in rest
    assert not _left_in(_folder("".join(seen)))


@pytest.fixture
def labelled(call_cli: Callable[..., Any], write_corpus: Callable[..., Path], database: Connection) -> int:
    """A job whose documents all have their rows."""
    corpus = write_corpus([{"id": n, "text": f"package {n} does one thing"} for n in range(DOCUMENTS)])
    result = call_cli("enqueue", corpus, "--schema", "packages", "--chunk-size", str(CHUNK_SIZE), "--json")
    assert result.returncode == 0, result.stderr
    job_id: int = json.loads(result.stdout)["job_id"]
    _write_rows(database, job_id, 0)
    database.execute("UPDATE gleaner.chunks SET state = 'done', attempt = 1")
    database.execute("UPDATE gleaner.jobs SET state = 'done'")
    return job_id


def _write_rows(database: Connection, job_id: int, first: int, last: int = DOCUMENTS - 1) -> None:
    database.execute(
        "INSERT INTO gleaner.labels (job_id, ordinal, chunk_no, outcome, label, dropped_tokens, parts, tries, attempt,"
        f" worker) SELECT %s, n, 0, 'ok', '{{}}', 0, 1, 1, 1, 'w1' FROM generate_series({first}, {last}) AS n",
        [job_id],
    )


def _account(database: Connection, job_id: int, *poisoned: int, retried: int = 0) -> Account:
    plan = JobPlan("job", DOCUMENTS, CHUNK_SIZE, 0, frozenset(poisoned))
    return take_account(database, {job_id: plan}, {job_id: retried} if retried else {})


def test_the_account_of_a_whole_job(database: Connection, labelled: int) -> None:
    account = _account(database, labelled)
    assert account.faults(at_the_end=True) == []
    assert (account.documents, account.rows, account.claimed_again) == (DOCUMENTS, DOCUMENTS, 0)


@pytest.mark.parametrize("at_the_end", [True, False])
def test_the_account_finds_a_lost_row(database: Connection, labelled: int, at_the_end: bool) -> None:
    database.execute("DELETE FROM gleaner.labels WHERE ordinal = 17")
    account = _account(database, labelled)
    assert (account.lost, account.unfinished) == (1, 0)
    assert len(account.faults(at_the_end=at_the_end)) == 1
    assert "1 documents are lost" in account.faults(at_the_end=at_the_end)[0]


def test_the_account_finds_a_chunk_that_was_called_done_too_early(database: Connection, labelled: int) -> None:
    database.execute("DELETE FROM gleaner.labels WHERE ordinal >= 30")
    database.execute("UPDATE gleaner.chunks SET state = 'running' WHERE chunk_no = 3")
    database.execute("UPDATE gleaner.jobs SET state = 'running'")
    account = _account(database, labelled)
    assert (account.lost, account.unfinished) == (0, 10)
    assert account.faults(at_the_end=False) == []
    assert len(account.faults(at_the_end=True)) == 2  # the rows, and the job that has not ended
    database.execute("UPDATE gleaner.chunks SET state = 'done' WHERE chunk_no = 3")
    account = _account(database, labelled)
    assert (account.lost, account.unfinished) == (10, 0)
    assert account.faults(at_the_end=False)


def test_the_account_finds_a_doubled_row(database: Connection, labelled: int) -> None:
    database.execute("ALTER TABLE gleaner.labels DROP CONSTRAINT labels_pkey")
    _write_rows(database, labelled, 5, 6)
    account = _account(database, labelled)
    assert (account.lost, account.doubled, account.rows) == (0, 2, DOCUMENTS + 2)
    assert account.faults(at_the_end=False) == ["2 rows are doubled"]


def test_the_account_finds_a_row_that_was_written_twice(database: Connection, labelled: int) -> None:
    # Only retry takes rows out; each that is in the history for another reason was written, and then written again.
    database.execute(
        "INSERT INTO gleaner.label_history (job_id, ordinal, row) SELECT job_id, ordinal, to_jsonb(label)"
        " FROM gleaner.labels AS label WHERE ordinal < 3"
    )
    assert _account(database, labelled, retried=3).faults(at_the_end=True) == []
    assert _account(database, labelled, retried=2).history_off == 1
    assert _account(database, labelled).history_off == 3
    assert _account(database, labelled).faults(at_the_end=False)


def test_the_account_finds_rows_of_no_document(database: Connection, labelled: int) -> None:
    _write_rows(database, labelled, DOCUMENTS, DOCUMENTS)
    assert _account(database, labelled).stray == 1
    assert _account(database, labelled).faults(at_the_end=False)


def test_the_account_knows_what_was_poisoned(database: Connection, labelled: int) -> None:
    database.execute(
        "UPDATE gleaner.labels SET outcome = 'failed', label = NULL, reason_code = 'poison' WHERE ordinal IN (7, 8)"
    )
    account = _account(database, labelled, 7, 9)
    assert (account.poison_found, account.poison_missed, account.taken_for_poison) == (1, 1, 1)
    assert len(account.faults(at_the_end=True)) == 1


def test_the_account_finds_rows_that_nothing_explains(database: Connection, labelled: int) -> None:
    database.execute(
        "UPDATE gleaner.labels SET outcome = 'cancelled', label = NULL, reason_code = 'cancelled' WHERE ordinal < 4"
    )
    assert "4 rows are cancelled" in _account(database, labelled).faults(at_the_end=True)[0]
