"""Bad input as a user types it: one line that names the thing and the remedy, an exit code, nothing half-written."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from schemas.database import Connection
from schemas.settings import Settings

#: What loading writes to.
TABLES = ("corpora", "documents", "corpus_rejects", "label_specs", "jobs", "chunks")


@pytest.fixture
def corpus(write_corpus: Callable) -> Path:
    return write_corpus([{"id": 1, "text": "t", "abstract": "a"}, {"id": 2, "text": "t"}], name="good.jsonl")


@pytest.fixture
def check(database: Connection, published: Callable) -> Callable[..., str]:
    """Checks the form of a failed call's output, and that nothing was written; returns the error."""

    def call(done: Any, code: int) -> str:
        assert (done.returncode, done.stdout) == (code, ""), done.stderr
        assert done.stderr.startswith("error: ")
        assert done.stderr.count("\n") == 1
        assert "Traceback" not in done.stderr
        for table in TABLES:
            found = database.execute(f"SELECT count(*) AS n FROM gleaner.{table}").fetchone()  # type: ignore[arg-type]
            assert found == {"n": 0}, table
        assert published() == []
        return done.stderr

    return call


@pytest.fixture
def fails(run_cli: Callable, check: Callable) -> Callable[..., str]:
    """Runs a call that must fail, as a program of its own."""
    return lambda code, *args, env=None: check(run_cli(*args, env=env), code)


@pytest.fixture
def fails_here(call_cli: Callable, check: Callable) -> Callable[..., str]:
    """The same in this process: quicker."""
    return lambda code, *args, env=None: check(call_cli(*args, env=env), code)


def assert_says(error: str, *words: str) -> None:
    for word in words:
        assert word in error


def test_a_missing_file(fails: Callable) -> None:
    assert_says(fails(2, "enqueue", "nowhere.jsonl", "--schema", "papers"), "no file nowhere.jsonl", "check the path")


def test_an_empty_file(fails: Callable, write_corpus: Callable) -> None:
    error = fails(2, "enqueue", write_corpus([]), "--schema", "papers")
    assert_says(error, "corpus.jsonl is empty", "at least one document")


def test_a_file_of_blank_lines(fails_here: Callable, write_corpus: Callable) -> None:
    assert_says(fails_here(2, "enqueue", write_corpus(["", " "]), "--schema", "papers"), "holds no record")


def test_a_folder(fails_here: Callable, tmp_path: Path) -> None:
    assert_says(fails_here(2, "enqueue", tmp_path, "--schema", "papers"), "is a folder without a file")


def test_a_file_of_lines_that_are_no_records(fails_here: Callable, write_corpus: Callable) -> None:
    error = fails_here(2, "enqueue", write_corpus(["hello", "world"]), "--schema", "papers")
    assert_says(error, "2 invalid_json", "on line 1: Expecting value")


def test_a_corpus_with_too_many_rejects(fails_here: Callable, write_corpus: Callable) -> None:
    call = ["enqueue", write_corpus([{"id": 1, "text": "t"}, "broken", {"id": 1, "text": "t"}]), "--schema", "papers"]
    assert_says(fails_here(2, *call, "--strict"), "1 rejected so far, none is allowed (1 invalid_json)", "on line 2")
    assert_says(fails_here(2, *call, "--max-rejects", "1"), "2 rejected so far, 1 is allowed", "1 duplicate_id")
    assert_says(fails_here(2, *call, "--max-rejects", "50%"), "2 of 3 records rejected, over 50%")
    assert_says(fails_here(2, *call, "--max-rejects", "many"), "--max-rejects 'many': give a number")
    assert_says(fails_here(2, *call, "--max-rejects", "1", "--strict"), "--strict allows no reject")


def test_options_that_say_nothing(fails_here: Callable, corpus: Path) -> None:
    for options, words in (
        (["--format", "xml"], "--format 'xml' is none of jsonl"),
        (["--encoding", "utf-9"], "--encoding 'utf-9' is no encoding"),
        (["--where", "year"], "--where 'year' is no comparison"),
        (["--where", "text=nothing"], "none of 2 documents"),
        (["--where", "txet=nothing"], "--where: no record has a field 'txet'. Did you mean 'text'?"),
        (["--limit", "1", "--sample", "1"], "--limit takes the first documents"),
        (["--text", "{a}", "--text-field", "b"], "--text and --text-field say the same thing"),
    ):
        assert_says(fails_here(2, "enqueue", corpus, "--schema", "papers", *options), words)


def test_an_unknown_field(fails: Callable, corpus: Path) -> None:
    error = fails(2, "enqueue", corpus, "--schema", "papers", "--text-field", "abstrakt")
    assert_says(error, "--text-field: no record has a field 'abstrakt'", "Did you mean 'abstract'?", "'id', 'text'")


def test_an_unknown_schema(fails: Callable, corpus: Path) -> None:
    assert_says(fails(2, "enqueue", corpus, "--schema", "paper"), "unknown schema 'paper'", "packages, papers")


def test_a_missing_schema_file(fails_here: Callable, corpus: Path) -> None:
    assert_says(fails_here(2, "enqueue", corpus, "--schema", "labels.json"), "labels.json", "No such file")


def test_a_schema_that_the_engine_can_not_constrain(fails: Callable, corpus: Path, tmp_path: Path) -> None:
    schema = tmp_path / "odd.json"
    schema.write_text(
        json.dumps({"type": "object", "properties": {"n": {"type": "object"}, "any": {"description": "?"}}})
    )
    assert_says(fails(2, "enqueue", corpus, "--schema", schema), "$.n", "name them", "$.any", "give it a `type`")


def test_what_the_engine_can_not_constrain_is_named_and_checked_afterwards(
    call_cli: Callable, corpus: Path, tmp_path: Path
) -> None:
    schema = tmp_path / "odd.json"
    schema.write_text(json.dumps({"type": "object", "properties": {"n": {"type": "integer", "multipleOf": 3}}}))
    result = call_cli("enqueue", corpus, "--schema", schema)
    assert result.returncode == 0
    assert "$.n: `multipleOf` is checked after generation" in result.stdout


def test_a_broken_template(fails_here: Callable, corpus: Path) -> None:
    error = fails_here(2, "enqueue", corpus, "--schema", "papers", "--template", "no document")
    assert_says(error, "{text} exactly once")


def test_a_template_with_an_unknown_field(fails_here: Callable, corpus: Path) -> None:
    error = fails_here(2, "enqueue", corpus, "--schema", "papers", "--template", "{titel} {text}")
    assert_says(error, "the template: no record has a field 'titel'", "'abstract'")


def test_a_prompt_given_twice_and_one_that_is_missing(fails_here: Callable, corpus: Path) -> None:
    call = ["enqueue", corpus, "--schema", "papers", "--prompt-file", "prompt.txt"]
    assert_says(fails_here(2, *call, "--prompt", "p"), "--prompt and --prompt-file")
    assert_says(fails_here(2, *call), "--prompt-file prompt.txt", "No such file")


def test_an_unknown_profile(fails_here: Callable, corpus: Path) -> None:
    error = fails_here(2, "estimate", corpus, "--schema", "papers", "--profile", "h10")
    assert_says(error, "--profile: 'h10' is none of ", "'h100'")


def test_an_impossible_chunk_size(fails_here: Callable, corpus: Path) -> None:
    assert_says(
        fails_here(2, "enqueue", corpus, "--schema", "papers", "--chunk-size", "0"), "--chunk-size: 0 is not at least 1"
    )


def test_an_unknown_setting(fails_here: Callable, corpus: Path) -> None:
    error = fails_here(2, "enqueue", corpus, "--schema", "papers", env={"GLEANER_CHUNKSIZE": "5"})
    assert_says(error, "GLEANER_CHUNKSIZE is no setting", "GLEANER_CHUNK_SIZE")


@pytest.mark.parametrize(
    "command", [["enqueue", "good", "--schema", "papers"], ["status"], ["watch", "1"], ["db", "upgrade"]]
)
def test_no_database_server(fails_here: Callable, corpus: Path, command: list[str]) -> None:
    call = [corpus if word == "good" else word for word in command]
    error = fails_here(1, *call, env={"GLEANER_DATABASE_URL": "postgresql://gleaner:hidden@127.0.0.1:1/gleaner"})
    assert_says(error, "no connection to Postgres at gleaner@127.0.0.1:1/gleaner", "refused", "GLEANER_DATABASE_URL")
    assert "hidden" not in error


def test_a_database_that_does_not_exist(fails: Callable, corpus: Path, settings: Settings) -> None:
    url = settings.database_url.get_secret_value().rpartition("/")[0] + "/nowhere"
    error = fails(1, "enqueue", corpus, "--schema", "papers", env={"GLEANER_DATABASE_URL": url})
    assert_says(error, 'database "nowhere" does not exist', "GLEANER_DATABASE_URL")


def test_a_wrong_password(fails: Callable, corpus: Path, settings: Settings) -> None:
    parts = psycopg.conninfo.conninfo_to_dict(settings.database_url.get_secret_value())
    url = f"postgresql://gleaner:wrong-one@127.0.0.1:{parts['port']}/{parts['dbname']}"
    error = fails(1, "enqueue", corpus, "--schema", "papers", env={"GLEANER_DATABASE_URL": url})
    assert_says(error, "password authentication failed", "GLEANER_DATABASE_URL")
    assert "wrong-one" not in error


def test_a_database_url_that_is_none(fails_here: Callable, corpus: Path) -> None:
    for url in ("not a url", "postgres:/me:s3cret@here/db", "postgresql://me:s3#cret@here/x y"):
        error = fails_here(2, "enqueue", corpus, "--schema", "papers", env={"GLEANER_DATABASE_URL": url})
        assert_says(error, "GLEANER_DATABASE_URL", "postgresql://")
        assert "cret" not in error


@pytest.mark.parametrize("command", [["enqueue", "good", "--schema", "papers"], ["status"], ["watch", "1"], ["jobs"]])
def test_a_database_without_tables(
    fails_here: Callable, corpus: Path, empty_database_url: str, command: list[str]
) -> None:
    call = [corpus if word == "good" else word for word in command]
    assert_says(fails_here(1, *call, env={"GLEANER_DATABASE_URL": empty_database_url}), "run `producer db upgrade`")


def test_no_broker(fails: Callable, corpus: Path) -> None:
    error = fails(1, "enqueue", corpus, "--schema", "papers", env={"GLEANER_BROKER_URL": "redis://127.0.0.1:1/0"})
    assert_says(error, "no connection to the broker at 127.0.0.1:1", "GLEANER_BROKER_URL")


def test_a_wrong_broker_password(fails_here: Callable, corpus: Path, settings: Settings) -> None:
    address = settings.broker_url.get_secret_value().rpartition("@")[2]
    env = {"GLEANER_BROKER_URL": f"redis://:wrong-one@{address}"}
    error = fails_here(1, "enqueue", corpus, "--schema", "papers", env=env)
    assert_says(error, "no connection to the broker", "let us not in: check user and password in GLEANER_BROKER_URL")
    assert "wrong-one" not in error


@pytest.mark.parametrize("command", ["status", "watch"])
def test_an_unknown_job(fails_here: Callable, command: str) -> None:
    assert_says(fails_here(2, command, "7"), "no job 7", "there is none yet", "producer enqueue")


def test_wrong_use_exits_2(call_cli: Callable, corpus: Path) -> None:
    for call in (["enqueue", corpus], ["enqueue"], ["enqueu"], ["status", "x"], ["enqueue", corpus, "--no-such-flag"]):
        done = call_cli(*call)
        assert (done.returncode, done.stdout) == (2, "")
        assert "Traceback" not in done.stderr
