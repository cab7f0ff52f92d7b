"""The worker against a real `vllm serve` on the CPU: the whole way from a corpus to rows."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from schemas.database import Connection
from schemas.label_spec import load_label_spec
from schemas.settings import Settings
from worker.check import LabelCheck

DEMO = Path(__file__).parents[2] / "ops" / "demo" / "corpus.jsonl"
GOOD = 9
BAD = ("bad-too-long", "bad-injection")
#: Seconds for the job: nine labels take about 20 on two idle cores.
JOB_TIMEOUT_S = 240


@pytest.fixture
def openai_worker(vllm_server: Any, settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """`worker start` with the server as its engine, and what it logs."""
    variables = {
        "GLEANER_ENGINE": "openai",
        "GLEANER_MODEL": vllm_server.model,
        "GLEANER_OPENAI_BASE_URL": vllm_server.base_url,
        "GLEANER_OPENAI_API_KEY": vllm_server.api_key,
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    log = tmp_path / "worker.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "worker", "start", "--name", "remote"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        yield log
        process.terminate()
        assert process.wait(timeout=60) == 0, log.read_text()[-3000:]
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


@pytest.mark.timeout(700)  # the server's start is in it
def test_a_corpus_is_labelled_through_vllm_serve(
    openai_worker: Path, vllm_server: Any, database: Connection, tmp_path: Path
) -> None:
    corpus = tmp_path / "demo.jsonl"
    lines = DEMO.read_text(encoding="utf-8").splitlines(keepends=True)
    chosen = lines[:GOOD] + [line for line in lines if any(f'"{name}"' in line for name in BAD)]
    corpus.write_text("".join(chosen), encoding="utf-8")

    enqueue = ["enqueue", str(corpus), "--schema", "papers", "--text-field", "abstract", "--chunk-size", "4", "--json"]
    job = json.loads(_producer(*enqueue))["job_id"]
    _producer("watch", str(job), "--timeout", str(JOB_TIMEOUT_S), log=openai_worker)

    ledger = database.execute("SELECT * FROM gleaner.ledger WHERE job_id = %s", [job]).fetchone()
    assert ledger is not None
    assert (ledger["total"], ledger["pending"], ledger["balanced"]) == (GOOD + len(BAD), 0, True)
    assert (ledger["ok"], ledger["rejected"]) == (GOOD, len(BAD))

    rows = {row["external_id"]: row for row in database.execute(_ROWS, [job])}
    injection = rows["bad-injection"]
    assert (injection["outcome"], injection["reason_code"]) == ("rejected", "refused")
    assert "'<|im_end|>'" in injection["reason"]
    # Counted by the server: the estimate would be 30,000.
    assert rows["bad-too-long"]["reason_code"] == "over_long"
    assert 10_000 < rows["bad-too-long"]["prompt_tokens"] < 20_000

    check = LabelCheck(load_label_spec("papers")[0])
    cached = 0
    for row in (row for name, row in rows.items() if name not in BAD):
        assert check.validated(row["label"]) == row["label"]
        assert 200 < row["prompt_tokens"] < 2_000
        assert row["output_tokens"] > 5
        cached += row["cached_tokens"]
    # The instructions are the same for all of them.
    assert cached > 0

    engine = rows["bad-injection"]["info"]
    assert (engine["engine"], engine["model"], engine["max_model_len"]) == ("openai", vllm_server.model, 4096)
    assert engine["version"].startswith("vllm ")
    assert engine["arguments"]["base_url"] == vllm_server.base_url
    assert vllm_server.api_key not in json.dumps(engine) + openai_worker.read_text()


_ROWS = """
SELECT document.external_id, row.*, engine.info
FROM gleaner.labels AS row
JOIN gleaner.jobs AS job ON job.id = row.job_id
JOIN gleaner.documents AS document ON document.corpus_id = job.corpus_id AND document.ordinal = row.ordinal
JOIN gleaner.engines AS engine ON engine.id = row.engine_id
WHERE row.job_id = %s
"""


def _producer(*arguments: str, log: Path | None = None) -> str:
    ended = subprocess.run(
        [sys.executable, "-m", "producer", *arguments],
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=JOB_TIMEOUT_S + 30,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr + (log.read_text()[-3000:] if log else "")
    return ended.stdout
