"""Preview shows what the model is asked and answers; estimate says what a job takes, and status what it took."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from worker_process import StartWorker, eventually

from schemas.database import Connection

RECORDS = [{"id": f"d{n}", "title": f"Title {n}", "text": f"Text number {n}. " * (n + 1)} for n in range(20)]


@pytest.fixture
def corpus(write_corpus: Callable) -> Path:
    path: Path = write_corpus([*RECORDS[:2], "broken", *RECORDS[2:]])
    return path


def nothing_written(database: Connection) -> bool:
    return all(
        database.execute(f"SELECT 1 FROM gleaner.{table}").fetchone() is None  # type: ignore[arg-type]
        for table in ("corpora", "documents", "label_specs", "jobs")
    )


def test_a_preview_shows_prompts_and_writes_nothing(call_cli: Callable, corpus: Path, database: Connection) -> None:
    call = ["preview", corpus, "--schema", "papers", "-n", "3", "--template", r"{title}\n{text}"]
    shown = call_cli(*call)
    assert (shown.returncode, shown.stderr) == (0, "")
    for words in (
        "text field: 'text'",
        "1 of the first 4 records rejected",
        "Label schema papers: scaling_domain, ",
        "System prompt, ",
        "4.0 characters a token, a guess",
        "Document d2: 45 characters, ",
        "Title 2\nText number 2. ",
    ):
        assert words in shown.stdout
    assert "Document d3" not in shown.stdout
    as_json = json.loads(call_cli(*call, "--json").stdout)
    assert [one["document_id"] for one in as_json["documents"]] == ["d0", "d1", "d2"]
    assert as_json["schema"]["properties"]
    assert nothing_written(database)


def test_a_preview_needs_no_services(call_cli: Callable, corpus: Path) -> None:
    gone = {"GLEANER_DATABASE_URL": "postgresql://x@127.0.0.1:1/x", "GLEANER_BROKER_URL": "redis://127.0.0.1:1/0"}
    assert call_cli("preview", corpus, "--schema", "papers", env=gone).returncode == 0
    estimated = call_cli("estimate", corpus, "--schema", "papers", env=gone)
    assert estimated.returncode == 0
    assert "nothing is known of jobs before" in estimated.stderr


def test_a_preview_counts_with_the_models_tokenizer(call_cli: Callable, corpus: Path, tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    env = {"GLEANER_MODEL_PATH": str(tmp_path)}
    shown = json.loads(call_cli("preview", corpus, "--schema", "papers", "--json", env=env).stdout)
    assert shown["tokens_by"] == "the model's tokenizer"
    assert [one["tokens"] for one in shown["documents"]] == [3 * (n + 1) for n in range(5)]


def test_the_tokenizer_of_one_model_does_not_count_for_another(
    call_cli: Callable, corpus: Path, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"max_position_embeddings": 64}))
    env = {"GLEANER_MODEL_PATH": str(tmp_path), "GLEANER_MODEL": "small"}
    call = ["preview", corpus, "--schema", "papers"]
    own = call_cli(*call, env=env).stdout
    assert "tokens, does not fit: over_long" in own
    assert "Warning: every document will be rejected as over_long" in own
    assert "over_long" not in call_cli(*call, "--model", "qwen", env=env).stdout


def test_labels_come_from_a_running_worker(
    call_cli: Callable, corpus: Path, database: Connection, start_worker: StartWorker
) -> None:
    start_worker()
    eventually(lambda: database.execute("SELECT 1 FROM gleaner.engines").fetchone(), "a worker")
    done = call_cli("preview", corpus, "--schema", "papers", "-n", "2", "--run", "--timeout", "50")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("-> ok: {") == 2
    assert "labelling with a running worker" in done.stderr
    assert "No job yet" in call_cli("jobs").stdout
    assert "done   preview" in call_cli("jobs", "--all").stdout
    assert "there is no job yet" in call_cli("watch").stderr
    ledger = database.execute("SELECT total, ok, balanced FROM gleaner.ledger").fetchall()
    assert ledger == [{"total": 2, "ok": 2, "balanced": True}]


def test_labels_come_from_a_worker_that_is_started_for_them(call_cli: Callable, corpus: Path) -> None:
    call = ["preview", corpus, "--schema", "papers", "--run", "--timeout", "50", "--json"]
    done = call_cli(*call, "-n", "2", env={"GLEANER_ENGINE": "stub"})
    assert done.returncode == 0, done.stderr
    assert "starting one for this" in done.stderr
    assert [one["row"]["outcome"] for one in json.loads(done.stdout)["documents"]] == ["ok", "ok"]
    failed = call_cli(*call, "-n", "3", env={"GLEANER_ENGINE": "openai"})
    assert failed.returncode == 1
    assert "the worker ended with exit code" in failed.stderr
    assert "GLEANER_OPENAI_BASE_URL" in failed.stderr


def test_an_estimate_uses_what_was_measured_and_status_holds_it_against_what_happened(
    call_cli: Callable, corpus: Path, database: Connection, start_worker: StartWorker
) -> None:
    call = ["estimate", corpus, "--schema", "papers"]
    before = json.loads(call_cli(*call, "--json", env={"GLEANER_GPU_HOUR_PRICE": "2"}).stdout)
    assert (before["documents"], before["rejected"], before["seconds"]) == (20, 1, None)
    assert nothing_written(database)
    assert call_cli("enqueue", corpus, "--schema", "papers").returncode == 0
    assert "forecast    unknown time" in call_cli("status", "1").stdout
    start_worker(stub_rows_per_s=20)
    assert call_cli("watch", "1", "--timeout", "50").returncode == 0
    shown = call_cli("status", "1").stdout
    assert "it took     0:0" in shown
    after = json.loads(call_cli(*call, "--json", env={"GLEANER_GPU_HOUR_PRICE": "2"}).stdout)
    assert "measured" in after["basis"]["rate"]
    assert "measured" in after["basis"]["output tokens"]
    assert after["seconds"] > 0
    assert after["cost"] == pytest.approx(2 * after["gpu_hours"])
    took = json.loads(call_cli("status", "1", "--json").stdout)["took"]
    assert after["output_tokens"] == pytest.approx(took["output_tokens"], rel=0.02)
    assert after["prompt_tokens"] == pytest.approx(took["prompt_tokens"], rel=0.02)
    words = call_cli(*call, "--workers", "2", "--rate", "10").stdout
    assert "time           0:01 with 2 GPUs, 0.00 GPU hours; 10 documents/s, as given" in words
    assert "± " in words


def test_documents_that_lie_far_apart_are_drawn_too(call_cli: Callable, write_corpus: Callable) -> None:
    records = [{"id": n, "text": "t" * (80 if n % 20 else 400), "pick": n % 20} for n in range(8000)]
    call = ["enqueue", write_corpus(records), "--schema", "papers", "--prompt", "p" * 400, "--where", "pick=0"]
    assert call_cli(*call).returncode == 0
    made = json.loads(call_cli("status", "1", "--json").stdout)["forecast"]
    assert (made["documents"], made["prompt_tokens"]) == (400, 400 * (100 + 100 + 20))
    assert made["prompt_spread"] == 0
    drawn = int(made["basis"]["prompt tokens"].rpartition(", ")[2].partition(" ")[0])
    assert 150 <= drawn <= 300


def test_what_has_no_document_is_refused(call_cli: Callable, write_corpus: Callable) -> None:
    path = write_corpus(["broken"])
    for command in ("preview", "estimate"):
        done = call_cli(command, path, "--schema", "papers")
        assert (done.returncode, done.stdout) == (2, "")
        assert "holds no document to" in done.stderr
