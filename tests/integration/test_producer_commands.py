"""The commands as a user types them, over a real database and broker."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from psycopg.types.json import Jsonb
from pydantic import SecretStr
from worker_process import StartWorker, eventually

from producer.cli import COMMANDS
from producer.cli.doctor import MASK, _masked
from producer.cli.jobs import show_jobs
from producer.jobs import create_job, freeze_label_spec
from producer.loader import load_corpus
from producer.progress import silent
from producer.readers import open_reader
from producer.records import FieldMapping
from schemas.database import Connection
from schemas.label_spec import load_label_spec
from schemas.outcomes import Outcome
from schemas.printable import printable
from schemas.queue import create_app
from schemas.settings import Settings

SCHEMA = {
    "type": "object",
    "properties": {"kind": {"enum": ["a", "b"]}, "words": {"type": "string"}},
    "required": ["kind", "words"],
}


@pytest.fixture
def job_id(database: Connection, settings: Settings, write_corpus: Callable) -> int:
    """A job of four documents in two chunks, of a corpus with 3,000 rejects."""
    rows = [{"id": n, "text": "t"} for n in range(4)] + ["broken"] * 3000
    corpus = load_corpus(
        database, open_reader(str(write_corpus(rows)), settings), FieldMapping("id", "text"), "c", settings, silent
    )
    spec = freeze_label_spec(database, load_label_spec("papers")[0])
    return create_job(database, corpus, spec, settings.model, 2).id


def finish(database: Connection, job_id: int, state: str = "done") -> None:
    counts = dict.fromkeys(("truncated", "invalid", "rejected", "failed", "cancelled"), 0)
    database.execute(
        "UPDATE gleaner.jobs SET state = %s, started_at = created_at, finished_at = created_at + interval '2 s',"
        " final_counts = %s WHERE id = %s",
        [state, Jsonb({"ok": 4, **counts}), job_id],
    )


def test_enqueue_reports_and_the_same_again_changes_nothing(
    run_cli: Callable, write_corpus: Callable, published: Callable, tmp_path: Path, database: Connection
) -> None:
    schema = tmp_path / "kinds.schema.json"
    schema.write_text(json.dumps(SCHEMA))
    path = write_corpus([{"key": n, "body": f"t{n}", "title": "x"} for n in range(5)] + ["broken"])
    call = ["enqueue", path, "--schema", schema, "--id-field", "key", "--text-field", "body", "--chunk-size", "2"]
    call += ["--template", "{title}: {text}", "--prompt", "Say what it is.", "--name", "my corpus", "--model", "m/2"]
    first = run_cli(*call, "--json")
    assert (first.returncode, first.stderr) == (0, "")
    summary = json.loads(first.stdout)
    assert first.stdout.count("\n") == 1
    expected = {
        "job_id": 1,
        "created": True,
        "corpus": "my corpus",
        "documents": 5,
        "rejected": 1,
        "rejects": {"invalid_json": 1},
        "label_spec": "kinds",
        "version": 1,
        "chunks": 3,
        "published": 3,
    }
    assert {key: summary[key] for key in expected} == expected
    assert summary["first_rejects"][0]["line"] == 6
    again = run_cli(*call)
    assert (again.returncode, again.stderr) == (0, "")
    for words in (
        "Corpus my corpus was loaded before: 5 documents",
        "1 record rejected, 16.67%:",
        "invalid_json  1",
        "format: JSON Lines",
        "line 6: invalid_json: Expecting value at character 1",
        "Label spec kinds_v1: 2 fields",
        "$.words: no maxLength",
        "Job 1 continued: 3 chunks, 0 published",  # the messages are there
        "producer watch 1",
    ):
        assert words in again.stdout
    job = database.execute("SELECT count(*) AS jobs, min(model) AS model FROM gleaner.jobs").fetchone()
    assert job == {"jobs": 1, "model": "m/2"}
    assert published() == []  # they wait in the queue of model m/2
    warning = "no worker serves 'm/2' now; served so far: no model"
    assert summary["warnings"] == [warning]
    assert f"Warning: {warning}" in again.stdout
    assert "prompt: made" not in again.stdout


def test_enqueue_says_which_prompt_is_used_and_where_a_new_version_shows(
    call_cli: Callable, write_corpus: Callable, tmp_path: Path
) -> None:
    schema = tmp_path / "tickets.json"
    schema.write_text(json.dumps(SCHEMA))
    path = write_corpus([{"id": 1, "text": "t"}])
    first = call_cli("enqueue", path, "--schema", schema)
    assert "prompt: made from the schema's descriptions (--prompt or --prompt-file for your own)" in first.stdout
    assert "new version" not in first.stdout
    properties = {**SCHEMA["properties"], "more": {"type": "boolean"}}
    schema.write_text(json.dumps({**SCHEMA, "properties": properties, "required": list(properties)}))
    second = call_cli("enqueue", path, "--schema", schema)
    assert (
        "new version of tickets: labels.tickets now shows v2, v1 stays in labels.tickets_v1 "
        "(--schema-name for another name)" in second.stdout
    )
    assert "new version" not in call_cli("enqueue", path, "--schema", schema).stdout
    assert "prompt: made" not in call_cli("enqueue", path, "--schema", "papers").stdout


def test_a_model_that_workers_have_served_needs_no_warning(
    call_cli: Callable, job_id: int, database: Connection, settings: Settings
) -> None:
    status = json.loads(call_cli("status", str(job_id), "--json").stdout)
    assert status["warnings"] == [f"no worker serves '{settings.model}' now; served so far: no model"]
    insert = "INSERT INTO gleaner.engines (digest, info) VALUES (%s, %s)"
    database.execute(insert, ["a", Jsonb({"model": "another"})])
    assert "served so far: another" in call_cli("status", str(job_id)).stdout
    database.execute(insert, ["c", Jsonb({"model": f"{settings.model}-q4"})])
    assert f"now: did you mean {settings.model}-q4?; served so far: " in call_cli("status", str(job_id)).stdout
    assert f"did you mean {settings.model}-q4?" in call_cli("watch", "--timeout", "0").stderr
    database.execute(insert, ["b", Jsonb({"model": settings.model})])
    assert "Warning" not in call_cli("status", str(job_id)).stdout
    finish(database, job_id)
    database.execute("DELETE FROM gleaner.engines")
    assert "Warning" not in call_cli("status", str(job_id)).stdout


def test_a_live_worker_serves_its_model_whatever_the_database_says(
    call_cli: Callable, job_id: int, database: Connection, settings: Settings, start_worker: StartWorker
) -> None:
    start_worker()
    with create_app(settings) as broker:
        eventually(lambda: broker.control.inspect(timeout=1).active_queues(), "a worker's answer")
    database.execute("DELETE FROM gleaner.engines")  # a worker leaves its entry there as it starts
    assert "Warning" not in call_cli("status", str(job_id)).stdout
    database.execute("UPDATE gleaner.jobs SET model = 'gpt4'")
    warning = "no worker serves 'gpt4' now; served so far: no model"
    assert f"Warning: {warning}" in call_cli("status", str(job_id)).stdout


def test_a_stalled_watch_says_that_no_worker_serves_the_model(
    call_cli: Callable, job_id: int, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("producer.watching.STALL_S", 0)
    watched = call_cli("watch", str(job_id), "--timeout", "1")
    assert f"no worker serves '{settings.model}' now; served so far: no model" in watched.stderr
    assert "measuring rows/s" in watched.stdout


def test_a_job_without_rows_is_waiting_and_has_no_rate(
    call_cli: Callable, job_id: int, database: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("producer.watching.RATE_WINDOW_S", 0)
    assert "0 of 4 rows, 0 ok, waiting for rows" in call_cli("watch", "--timeout", "0").stdout
    assert "running     not yet: waiting for a worker" in call_cli("status", str(job_id)).stdout
    database.execute("UPDATE gleaner.jobs SET state = 'running', started_at = now() - interval '10 h'")
    shown = call_cli("status", str(job_id)).stdout
    assert "running     10:00:" in shown
    assert "since the first claim, no label yet" in shown


def test_enqueue_warns_where_no_document_fits_beside_its_label(call_cli: Callable, write_corpus: Callable) -> None:
    call = ["enqueue", write_corpus([{"id": 1, "text": "t"}]), "--schema", "papers", "--json"]
    made = json.loads(call_cli(*call, env={"GLEANER_MAX_MODEL_LEN": "128"}).stdout)
    assert made["warnings"][0].startswith("every document will be rejected as over_long")
    again = call_cli(*call[:-1])
    assert "1 chunk, 0 published (the queue holds a message for each chunk that waits)" in again.stdout


def test_enqueue_closes_a_job_that_only_lacked_that(
    call_cli: Callable, write_corpus: Callable, database: Connection
) -> None:
    path = write_corpus([{"id": 1, "text": "t"}])
    assert call_cli("enqueue", path, "--schema", "papers").returncode == 0
    database.execute("UPDATE gleaner.chunks SET state = 'done'")
    again = call_cli("enqueue", path, "--schema", "papers")
    assert again.returncode == 0
    assert "Job 1 is done: nothing left to publish" in again.stdout


def test_status_shows_the_ledger_and_fails_when_it_does_not_balance(
    call_cli: Callable, job_id: int, database: Connection
) -> None:
    shown = call_cli("status", str(job_id), "--rejects")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "Ledger: 4 total = 4 pending + 0 ok" in shown.stdout
    assert "Chunks: 2 queued" in shown.stdout
    assert shown.stdout.count("invalid_json: Expecting value") == 3000
    database.execute("UPDATE gleaner.chunks SET state = 'done', last_error = 'it broke' WHERE chunk_no = 0")
    unbalanced = call_cli("status", str(job_id))
    assert unbalanced.returncode == 1
    assert "NOT BALANCED" in unbalanced.stdout
    assert "chunk 0 (done, attempt 0); last time: it broke" in unbalanced.stdout
    as_json = call_cli("status", str(job_id), "--json")
    assert as_json.returncode == 1
    status = json.loads(as_json.stdout)
    assert status["balanced"] is False
    assert status["ledger"]["pending"] == 2
    assert status["rejects"] == {"invalid_json": 3000}


def test_jobs_are_listed(call_cli: Callable, job_id: int, database: Connection) -> None:
    live = json.loads(call_cli("status", "--json").stdout)
    assert [job["id"] for job in live["jobs"]] == [job_id]
    assert live["totals"]["pending"] == 4
    finish(database, job_id)
    assert "No live job" in call_cli("status").stdout
    assert f"{job_id}    done" in call_cli("jobs").stdout
    (listed,) = json.loads(call_cli("jobs", "--json").stdout)["jobs"]
    assert (listed["state"], listed["counts"]["ok"]) == ("done", 4)


@pytest.mark.parametrize(("state", "code"), [("done", 0), ("cancelled", 1)])
def test_watch_ends_with_the_job(call_cli: Callable, job_id: int, database: Connection, state: str, code: int) -> None:
    finish(database, job_id, state)
    watched = call_cli("watch", str(job_id), "--json")
    assert watched.returncode == code, watched.stderr
    last = json.loads(watched.stdout)
    assert (last["state"], last["elapsed_s"]) == (state, 2.0)


def test_a_finished_job_is_watched_with_its_own_rate_and_time(
    call_cli: Callable, job_id: int, database: Connection
) -> None:
    finish(database, job_id)
    database.execute("UPDATE gleaner.jobs SET finished_at = started_at + interval '90 s'")
    assert "nothing labelled, 1:30 elapsed" in call_cli("watch").stdout
    assert "1:30 since the first claim, nothing labelled" in call_cli("status", str(job_id)).stdout


def test_watch_ends_at_its_timeout(call_cli: Callable, job_id: int) -> None:
    watched = call_cli("watch", str(job_id), "--timeout", "0")
    assert watched.returncode == 1
    assert f"job {job_id} queued: 0 of 4 rows" in watched.stdout
    assert "error: job 1 has not ended in 0 s" in watched.stderr


def test_watch_survives_a_lost_connection(start_cli: Callable, job_id: int, database: Connection) -> None:
    process = start_cli("watch", str(job_id), "--json")
    assert json.loads(process.stdout.readline())["state"] == "queued"
    ended = database.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE application_name = 'gleaner producer watch' AND datname = current_database()"
    ).fetchall()
    assert len(ended) == 1
    finish(database, job_id)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 0, stderr
    assert json.loads(stdout.splitlines()[-1])["state"] == "done"
    assert stderr.count("the connection to Postgres was lost") == 1


def test_watch_is_left_by_an_interrupt(start_cli: Callable, job_id: int) -> None:
    process = start_cli("watch", str(job_id), "--json")
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert stderr == "interrupted: run the same command again to continue\n"


def test_a_reader_that_has_had_enough_makes_no_noise(start_cli: Callable, job_id: int) -> None:
    process = start_cli("status", str(job_id), "--rejects", env={"PYTHONUNBUFFERED": "1"})
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait(timeout=60) == 128 + signal.SIGPIPE


def test_schemas_are_listed_and_shown(call_cli: Callable, job_id: int) -> None:
    listed = json.loads(call_cli("schemas", "--json").stdout)
    assert set(listed["builtin"]) == {"packages", "papers"}
    assert [(row["label_spec"], row["version"], row["jobs"]) for row in listed["frozen"]] == [("papers", 1, 1)]
    plain = call_cli("schemas")
    assert "papers_v1" in plain.stdout
    frozen = json.loads(call_cli("schemas", "show", "papers_v1").stdout)
    builtin = json.loads(call_cli("schemas", "show", "papers").stdout)
    assert frozen == builtin
    assert next(iter(frozen["properties"])) == "scaling_domain"
    assert call_cli("schemas", "show", "papers").stdout.startswith('{\n  "')
    unknown = call_cli("schemas", "show", "papers_v9")
    assert unknown.returncode == 2
    assert "no label schema 'papers_v9'" in unknown.stderr


def test_doctor_checks_everything_and_prints_no_secret(call_cli: Callable, settings: Settings) -> None:
    passwords = [
        url.get_secret_value().split(":")[2].split("@")[0] for url in (settings.database_url, settings.broker_url)
    ]
    well = call_cli("doctor")
    assert (well.returncode, well.stderr) == (0, "")
    assert well.stdout.count("ok     ") == 3
    ill = call_cli("doctor", "--json", env={"GLEANER_BROKER_URL": "redis://127.0.0.1:1/0"})
    assert ill.returncode == 1
    report: dict[str, Any] = json.loads(ill.stdout)
    assert [check["ok"] for check in report["checks"]] == [True, True, False]
    assert {setting["name"] for setting in report["settings"]} >= {"GLEANER_DATABASE_URL", "GLEANER_MODEL"}
    for password in passwords:
        assert password not in well.stdout + ill.stdout
    address = settings.database_url.get_secret_value().rpartition("@")[2]
    assert f"GLEANER_DATABASE_URL = postgresql://gleaner:{MASK}@{address}" in well.stdout


def test_doctor_lists_the_settings_though_some_are_bad(call_cli: Callable) -> None:
    Path(".env").write_text("GLEANER_CHUNKSIZE=1\nGLEANER_SEED=2\n", encoding="utf-8")
    bad = {"GLEANER_LEASE_S": "two", "GLEANER_ENGINE_ARGS": "{", "GLEANER_DATABASE_URL": "mysql://u:s3cret@h/d"}
    ill = call_cli("doctor", env=bad)
    assert (ill.returncode, ill.stderr) == (1, "")
    for words in (
        "WRONG  setting: GLEANER_CHUNKSIZE is no setting: did you mean GLEANER_CHUNK_SIZE? (from .env)",
        "WRONG  setting: GLEANER_LEASE_S: 'two' is not a whole number (from the environment)",
        "WRONG  setting: GLEANER_ENGINE_ARGS: not JSON: ",
        "WRONG  setting: GLEANER_DATABASE_URL: it must begin with postgresql:// (from the environment)",
        "ok     broker: ",
        "GLEANER_SEED = 2 (default: 0)",
        "GLEANER_LEASE_S = 120\n",
    ):
        assert words in ill.stdout
    assert "s3cret" not in ill.stdout
    assert ill.stdout.index("WRONG") < ill.stdout.index("GLEANER_SEED = ")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me@h:1/d", "postgresql://me@h:1/d"),
        ("postgresql://me:p:/@q@h:1/d?sslmode=on", f"postgresql://me:{MASK}@h:1/d?sslmode=on"),
        ("postgresql://h/d?user=u&password=p%40&x=1", f"postgresql://h/d?user=u&password={MASK}&x=1"),
        ("redis://:p@h/0", f"redis://:{MASK}@h/0"),
        ("https://token@h/v1", f"https://{MASK}@h/v1"),
        ("http://h:8000/v1?api_key=k", f"http://h:8000/v1?api_key={MASK}"),
    ],
)
def test_only_what_is_secret_in_a_url_is_masked(url: str, shown: str) -> None:
    assert _masked(SecretStr(url), "database_url") == shown
    assert _masked(SecretStr(url), "flower_password") == MASK


def test_numbers_and_names_that_are_none_are_said_plainly(call_cli: Callable, write_corpus: Callable) -> None:
    for call in (["status", "two"], ["watch", "two"], ["enqueue", "x", "--schema", "papers", "--chunk-size", "two"]):
        done = call_cli(*call)
        assert done.returncode == 2
        assert "'two' is not a whole number" in done.stderr
    path = write_corpus([{"id": 1, "text": "t"}])
    for name in ("paper", "Papers"):
        assert "(.json); did you mean papers?" in call_cli("enqueue", path, "--schema", name).stderr
    over_long = call_cli("enqueue", path, "--schema", "papers", "--over-long", "cut")
    assert over_long.returncode == 2
    assert "'cut' is none of reject, truncate-tail" in over_long.stderr


def test_a_job_fits_80_columns(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for module in ("jobs", "tables"):
        monkeypatch.setattr(f"producer.cli.{module}.output_width", lambda: 80)
    counts = {"pending": 5_000, **dict.fromkeys(Outcome, 1_000)}
    job = {"id": 12, "state": "running", "corpus": "tickets", "label_spec": "tickets", "version": 2, "total": 11_000}
    job |= {"state_reason": None, "priority": 0}
    show_jobs([{**job, "model": "smollm2-135m-instruct", "counts": counts}])
    assert capsys.readouterr().out.splitlines() == [
        "job  state    corpus   label spec  model                  rows          not ok",
        "12   running  tickets  tickets_v2  smollm2-135m-instruct  6,000/11,000  5,000",
    ]


def test_db_upgrades_a_new_database(call_cli: Callable, empty_database_url: str) -> None:
    env = {"GLEANER_DATABASE_URL": empty_database_url}
    assert json.loads(call_cli("db", "current", "--json", env=env).stdout)["revision"] is None
    assert call_cli("db", "check", env=env).returncode == 1
    up = call_cli("db", "upgrade", env=env)
    assert (up.returncode, up.stderr) == (0, "")
    assert "brought from revision none to" in up.stdout
    assert "nothing to do" in call_cli("db", "upgrade", env=env).stdout
    assert json.loads(call_cli("db", "check", "--json", env=env).stdout)["as_needed"] is True


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(call_cli: Callable, command: str) -> None:
    shown = call_cli(command, "--help")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert f"Example: producer {command}" in shown.stdout


def test_the_producer_starts_without_an_engine() -> None:
    modules = ", ".join(f"producer.cli.{command}" for command in COMMANDS)
    heavy = "('torch', 'vllm', 'worker', 'ops')"
    code = f"import sys; import {modules}; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_names_and_documents_can_not_steer_a_terminal(
    call_cli: Callable, write_corpus: Callable, database: Connection
) -> None:
    evil = "\x1bcowned\x07\r\x9b1A\u202e"
    records = [{"id": f"{n}{evil}", "text": f"t{evil}\nnext", f"f{evil}": f"v{evil}"} for n in range(3)]
    path = write_corpus([*records, records[0], f"broken {evil}", {"id": "x", f"f{evil}": 1}], name=f"name{evil}.jsonl")
    for call in (
        ["enqueue", path, "--schema", "papers", "--template", f"{{f{evil}}} {{text}}"],
        ["enqueue", path, "--schema", "papers", "--prompt", f"Label.{evil}", "--name", f"n\nJob 7 done{evil}"],
        ["preview", path, "--schema", "papers", "--template", f"{{f{evil}}} {{text}}"],
        ["preview", path, "--schema", "papers", "--text-field", f"no{evil}"],
        ["estimate", path, "--schema", "papers"],
        ["status", "1", "--rejects"],
        ["status"],
        ["jobs"],
        ["enqueue", f"none{evil}.jsonl", "--schema", "papers"],
        ["enqueue", path, "--schema", f"none{evil}"],
    ):
        done = call_cli(*call)
        printed = done.stdout + done.stderr
        assert "owned" in printed or call[0] == "estimate", call
        assert printable(printed, lines=True) == printed, call
    assert "\nJob 7 done" not in call_cli("status", "2").stdout


def test_what_to_group_by_is_said_where_it_pays_and_has_to_be_there(call_cli: Callable, write_corpus: Callable) -> None:
    rules = [f"Rule {n}: {'as everybody knows ' * 6}" for n in range(4)]
    path = write_corpus([{"id": n, "rules": rules[n % 4], "text": "t"} for n in range(40)])
    call = [path, "--schema", "papers", "--template", "{rules} {text}"]
    said = "prompts begin with 'rules', in 4 ways among the first 40 records: `--group-by rules` of enqueue"
    assert said in call_cli("preview", *call).stdout
    assert said in call_cli("enqueue", *call).stdout
    assert "prompts begin with" not in call_cli("enqueue", *call, "--group-by", "rules").stdout
    done = call_cli("enqueue", *call, "--group-by", "rule")
    assert done.returncode == 2
    assert done.stderr.startswith("error: --group-by: no record has a field 'rule'. Did you mean 'rules'?")


def test_an_encoding_whose_name_is_no_text_is_refused(call_cli: Callable, write_corpus: Callable) -> None:
    done = call_cli("preview", write_corpus([{"text": "t"}]), "--schema", "papers", "--encoding", "a\udcff")
    assert (done.returncode, done.stdout) == (2, "")
    assert "is no encoding" in done.stderr


@pytest.mark.parametrize("call", ["status", "status 1", "jobs", "watch 1 --timeout 0", "pause 1", "priority 1 2"])
def test_what_reads_or_decides_loads_neither_celery_nor_sqlalchemy(
    run_cli: Callable, database: Connection, settings: Settings, job_id: int, call: str
) -> None:
    insert = "INSERT INTO gleaner.engines (digest, info) VALUES ('d', %s)"
    database.execute(insert, [Jsonb({"model": settings.model})])
    done = run_cli(*call.split(), env={"PYTHONPROFILEIMPORTTIME": "1"})
    loaded = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
    assert "psycopg" in loaded
    others = {"alembic", "celery", "jsonschema", "kombu", "psycopg_pool", "pyarrow", "redis", "sqlalchemy"}
    assert loaded & others == set()


def test_queries_of_the_readme_run(job_id: int, database: Connection) -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```sql\n(.*?)```", readme, re.DOTALL)
    assert len(blocks) >= 2
    for block in blocks:
        database.execute(block)
