"""A few documents labelled now: a small corpus and job of their own, by a running worker or one started for it."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from producer.jobs import create_job, freeze_label_spec, job_model
from producer.loader import load_corpus
from producer.progress import silent
from producer.publish import publish_waiting
from producer.readers import open_reader
from producer.records import FieldMapping
from producer.watching import Watcher
from schemas.closing import close_job
from schemas.database import connect, queries, require_migrated
from schemas.env_files import ENV_PREFIX
from schemas.errors import GleanerError
from schemas.label_spec import LabelSpec
from schemas.queue import consumed_queues, create_app, queue_name, require_broker
from schemas.settings import Settings

#: Name of the corpus and of a worker that is started for it.
NAME = "preview"
#: Seconds to wait for the labels: a worker of our own first starts its engine, which compiles kernels the first time.
TRIAL_TIMEOUT_S = 600.0
#: Seconds that our worker may take to stop.
_STOP_S = 60.0


def try_labels(
    settings: Settings,
    spec: LabelSpec,
    documents: Sequence[dict[str, Any]],
    timeout_s: float,
    tell: Callable[[str], None],
) -> dict[str, dict[str, Any]]:
    """Label documents and wait for their rows, by document id.

    :param tell: told what is being done, in words.
    :raises GleanerError: when no worker can be had, or the rows don't come in time.
    """
    with ExitStack() as stack:
        connection = stack.enter_context(connect(settings, "producer preview"))
        broker = stack.enter_context(create_app(settings))
        require_migrated(connection)
        require_broker(broker, settings)
        model = job_model(connection, settings)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gleaner-")))
        file = folder / f"{NAME}.jsonl"
        records = [{"id": one["external_id"], "text": one["text"], "meta": one["meta"]} for one in documents]
        file.write_text("".join(json.dumps({**one.pop("meta"), **one}) + "\n" for one in records))
        reader = open_reader(str(file), settings)
        corpus = load_corpus(connection, reader, FieldMapping("id", "text"), NAME, settings, silent)
        job = create_job(connection, corpus, freeze_label_spec(connection, spec), model, settings.chunk_size)
        publish_waiting(connection, broker, settings, model, silent)
        close_job(connection, job.id)
        state = queries.job_by_id(connection, job_id=job.id)["state"]
        if state != "done":
            if queue_name(model) in (consumed_queues(broker) or ()):
                tell(f"labelling with a running worker (job {job.id}) ...")
                worker = None
            else:
                tell(f"no worker serves {model!r}: starting one for this (job {job.id}) ...")
                worker = stack.enter_context(_worker(folder / "worker.log", model))
            _wait(settings, job.id, timeout_s, tell, worker, folder / "worker.log")
        rows = queries.rows_of_job(connection, job_id=job.id)
        return {row.pop("external_id"): row for row in rows}


@contextmanager
def _worker(log: Path, model: str) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "worker", "start", "--name", NAME],
            env={**os.environ, f"{ENV_PREFIX}MODEL": model},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _cause(log: Path) -> str:
    """The last error in a worker's log, else its last line."""
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("error:") or "ERROR" in line or "CRITICAL" in line]
    return (errors or lines or ["it said nothing"])[-1]


def _wait(
    settings: Settings,
    job_id: int,
    timeout_s: float,
    tell: Callable[[str], None],
    worker: subprocess.Popen[bytes] | None,
    log: Path,
) -> None:
    until = time.monotonic() + timeout_s
    for reading in Watcher(settings, job_id, tell).readings():
        if reading.ended:
            return
        if worker is not None and worker.poll() is not None:
            raise GleanerError(f"the worker ended with exit code {worker.returncode}: {_cause(log)}")
        if time.monotonic() > until:
            raise GleanerError(
                f"no labels in {timeout_s:g} s: job {job_id} goes on, `producer status {job_id}` shows it"
            )
