"""The CLI where it is not at home: locales without the letters, closed streams, numbers and names out of bounds."""

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from schemas.settings import Settings

#: A corpus's name that few encodings have.
NAME = "日本"


@pytest.fixture
def job(run_cli: Callable, write_corpus: Callable) -> int:
    done = run_cli("enqueue", write_corpus([{"id": 1, "text": "t"}]), "--schema", "packages", "--name", NAME, "--json")
    return int(json.loads(done.stdout)["job_id"])


# Click writes lines as UTF-8 where the locale says ASCII, which is seldom meant.
@pytest.mark.parametrize(("encoding", "written"), [("ascii", "utf-8"), ("latin-1", "latin-1")])
def test_a_locale_without_the_letters(job: int, encoding: str, written: str) -> None:
    for command in (["jobs"], ["status"], ["status", str(job)]):
        done = subprocess.run(
            [sys.executable, "-m", "producer", *command],
            env={**os.environ, "PYTHONIOENCODING": encoding},
            capture_output=True,
            encoding=written,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, ""), command
        assert NAME in done.stdout or "\\u65e5\\u672c" in done.stdout


@pytest.mark.parametrize("command", ["jobs", "status", "watch 1 --timeout 0", "enqueue corpus.jsonl --schema packages"])
def test_closed_streams(environment: dict[str, str], write_corpus: Callable, job: int, command: str) -> None:
    Path("corpus.jsonl").write_bytes(write_corpus([{"id": 2, "text": "t"}]).read_bytes())
    call = f"{sys.executable} -m producer {command}"
    path = {"PYTHONPATH": os.pathsep.join(sys.path)}
    for closed in (">&-", "2>&-", ">&- 2>&-"):
        done = subprocess.run(
            ["sh", "-c", f"{call} {closed}"], env={**os.environ, **path}, capture_output=True, text=True, check=False
        )
        assert done.returncode == (1 if command.startswith("watch") else 0), done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (["jobs", "--limit", str(2**63)], "--limit"),
        (["schemas", "show", "packages_v2147483648"], "no label schema 'packages_v2147483648'"),
        (["schemas", "show", os.fsdecode(b"\xff")], "no label schema '\\udcff'"),
    ],
)
def test_values_that_postgres_would_refuse(run_cli: Callable, call: list[str], words: str) -> None:
    done = run_cli(*call)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_a_statement_that_postgres_gives_up_is_no_lost_connection(call_cli: Callable, settings: Settings) -> None:
    with psycopg.connect(settings.database_url.get_secret_value()) as other:
        other.execute("LOCK TABLE gleaner.jobs IN ACCESS EXCLUSIVE MODE")
        done = call_cli("status", env={"GLEANER_DATABASE_STATEMENT_TIMEOUT_S": "1"})
    assert (done.returncode, done.stdout) == (1, "")
    assert "refused: canceling statement due to statement timeout." in done.stderr
    assert "no connection" not in done.stderr


@pytest.mark.parametrize("command", [["enqueue", "corpus", "--json"], ["schemas", "show"]])
def test_what_a_schema_file_prints_is_no_part_of_the_answer(
    run_cli: Callable, write_corpus: Callable, command: list[str]
) -> None:
    schema = """
        from pydantic import BaseModel
        print("hello")
        class Seen(BaseModel):
            good: bool
    """
    Path("seen.py").write_text(textwrap.dedent(schema))
    corpus = write_corpus([{"id": 1, "text": "t"}])
    given = ["--schema", "seen.py"] if command[0] == "enqueue" else ["seen.py"]
    done = run_cli(*[corpus if word == "corpus" else word for word in command], *given)
    assert done.returncode == 0, done.stderr
    assert isinstance(json.loads(done.stdout), dict)
    assert done.stderr == "hello\n"
