"""The whole product on this machine, measured from the first claim to the last row."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import psycopg
from psycopg.rows import dict_row

from ops.bench.sampling import Sampler
from ops.services import Postgres, Valkey
from schemas.settings import Settings

#: Seconds for a job; far above what any model here takes.
JOB_TIMEOUT_S = 900

_FIGURES = """
SELECT extract(epoch FROM job.finished_at - job.started_at)::float AS seconds,
    (SELECT sum(output_tokens) FROM gleaner.labels WHERE job_id = job.id)::bigint AS output_tokens,
    (SELECT extract(epoch FROM max(created_at) - percentile_disc(0.99) WITHIN GROUP (ORDER BY created_at))
     FROM gleaner.labels WHERE job_id = job.id)::float AS last_percent_s,
    ledger.*
FROM gleaner.jobs AS job JOIN gleaner.ledger AS ledger ON ledger.job_id = job.id WHERE job.id = %s
"""


def run_product(records: list[dict[str, Any]], warm_up: int, schema: str, settings: Settings) -> dict[str, Any]:
    """Lane D: enqueue, label and read back ``records`` but the last ``warm_up``, which go first and unmeasured."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        folder = Path(name)
        folder.chmod(0o711)
        with Postgres(folder / "postgres") as postgres, Valkey(folder / "valkey") as valkey:
            environment = {
                **os.environ,
                "GLEANER_DATABASE_URL": postgres.url,
                "GLEANER_BROKER_URL": valkey.url,
                "GLEANER_MODEL_PATH": settings.model_path or "",
            }
            _run(["producer", "db", "upgrade"], environment)
            with (folder / "worker.log").open("w") as log:
                worker = subprocess.Popen(
                    [sys.executable, "-m", "worker", "start", "--name", "bench"],
                    env=environment,
                    stdout=log,
                    stderr=log,
                )
                try:
                    return {"D": _measure(folder, records, warm_up, schema, environment, worker.pid, postgres.url)}
                except subprocess.CalledProcessError:
                    print((folder / "worker.log").read_text()[-4000:], file=sys.stderr)
                    raise
                finally:
                    worker.terminate()
                    worker.wait(timeout=120)


def _measure(
    folder: Path,
    records: list[dict[str, Any]],
    warm_up: int,
    schema: str,
    environment: dict[str, str],
    worker_pid: int,
    url: str,
) -> dict[str, Any]:
    first = _enqueue(folder / "warm-up.jsonl", records[-warm_up:], schema, environment)
    _watch(first, environment)
    with Sampler(worker_pid) as usage:
        job = _enqueue(folder / "corpus.jsonl", records[:-warm_up], schema, environment)
        _watch(job, environment)
    with psycopg.connect(url, row_factory=dict_row) as connection:
        figures = connection.execute(_FIGURES, [job]).fetchone()
    assert figures is not None
    if not figures["balanced"] or figures["pending"]:
        raise RuntimeError(f"the ledger does not balance: {figures}")
    count, seconds = figures["total"], figures["seconds"]
    used = usage.as_json()
    return {
        "documents": count,
        "seconds": round(seconds, 2),
        "documents_per_s": round(count / seconds, 1),
        "output_tokens_per_s": round(figures["output_tokens"] / seconds),
        **{name: figures[name] for name in ("ok", "truncated", "invalid", "rejected", "failed")},
        "last_percent_share": round(figures["last_percent_s"] / seconds, 4),
        **used,
        "front_end_ms_a_document": round(1000 * (used["front_end_cpu_s"] or 0) / count, 2),
    }


def _enqueue(file: Path, records: list[dict[str, Any]], schema: str, environment: dict[str, str]) -> int:
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    answer = _run(["producer", "enqueue", str(file), "--schema", schema, "--json"], environment)
    return int(json.loads(answer)["job_id"])


def _watch(job: int, environment: dict[str, str]) -> None:
    _run(["producer", "watch", str(job), "--timeout", str(JOB_TIMEOUT_S)], environment)


def _run(command: list[str], environment: dict[str, str]) -> str:
    return subprocess.run(
        [sys.executable, "-m", *command], env=environment, check=True, stdout=subprocess.PIPE, text=True
    ).stdout
