"""Loading a corpus beside a bare COPY of the same rows into the same table, and publishing its chunks.

    python -m ops.bench.loading [--documents 1000000] [--formats jsonl,csv,parquet] [--folder FOLDER] [--out FILE]

Everything runs on this machine: Postgres (with fsync) and Valkey from packages, started for it. For each format a file
of documents of 500 characters with an id and three fields of metadata is made once and kept in the folder. Then, in
turn: `producer enqueue` as a program of its own (start, hash, load, cut, publish: all of it), and a bare COPY of the
rows that this left, from a file of Postgres's own text format into the same table, indexes and all. The table is
emptied before each. Prints the table of ops/BENCHMARKS.md.
"""

import argparse
import csv
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import psycopg
from celery import Celery

from ops.services import Postgres, Valkey
from producer.progress import silent
from producer.publish import publish_open_chunks
from schemas.database import connect
from schemas.queue import create_app
from schemas.settings import Settings

#: Characters of a document.
CHARS = 500
#: Documents a chunk where publishing is measured: many chunks from few documents.
PUBLISHED_SIZE = 25
_FOLDER = "for corpora and the database"
_COLUMNS = "corpus_id, ordinal, external_id, text, meta, content_hash, flags, original"
_BLOCK = 1024 * 1024
_TEXT = "the rate of growth falls with size as a power law whose exponent was measured in many cities and cells"
_WORDS = _TEXT.split()


def records(count: int) -> Iterator[dict[str, Any]]:
    """Documents of :data:`CHARS` characters, the same each time."""
    chance = random.Random(1)
    pool = [" ".join(chance.choices(_WORDS, k=150))[: CHARS - 12] for _ in range(1000)]
    for n in range(count):
        yield {
            "id": f"doc-{n:08}",
            "text": f"{n:010}: {pool[n % 1000]}",
            "title": f"Title number {n}",
            "year": 1950 + n % 70,
            "field": _WORDS[n % len(_WORDS)],
        }


def write(path: Path, count: int) -> None:
    """Make a corpus in the format that the name says."""
    if path.suffix == ".jsonl":
        with path.open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(record) + "\n" for record in records(count))
    elif path.suffix == ".csv":
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(next(records(1))))
            writer.writeheader()
            writer.writerows(records(count))
    else:
        pa, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
        schema = pa.Table.from_pylist(list(records(1))).schema
        with parquet.ParquetWriter(path, schema) as writer:
            batch: list[dict[str, Any]] = []
            for record in records(count):
                batch.append(record)
                if len(batch) == 50_000:
                    writer.write_table(pa.Table.from_pylist(batch, schema))
                    batch = []
            writer.write_table(pa.Table.from_pylist(batch, schema))


def enqueue(path: Path, environment: dict[str, str]) -> tuple[float, float, dict[str, Any]]:
    """Seconds, peak resident MiB and summary of one call."""
    began = time.monotonic()
    with tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "producer", "enqueue", str(path), "--schema", "papers", "--json"],
            env=environment,
            stdout=out,
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.monotonic() - began
        if process.returncode:
            raise RuntimeError(f"enqueue ended with exit code {process.returncode}")
        out.seek(0)
        return seconds, usage.ru_maxrss / 1024, json.load(out)


def bare_copy(url: str, rows: Path) -> float:
    """Seconds of a COPY of all rows, in one transaction, from Postgres's own format."""
    with psycopg.connect(url) as connection:
        began = time.monotonic()
        with (
            connection.cursor().copy(f"COPY gleaner.documents ({_COLUMNS}) FROM STDIN") as copy,
            rows.open("rb") as file,
        ):
            while block := file.read(_BLOCK):
                copy.write(block)
        connection.commit()
        return time.monotonic() - began


def empty(url: str) -> None:
    """Take out everything that was loaded."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("TRUNCATE gleaner.documents, gleaner.corpora, gleaner.jobs, gleaner.chunks, gleaner.labels")
        connection.execute("CHECKPOINT")


def publishing(settings: Settings, app: Celery, documents: int) -> dict[str, Any]:
    """Chunks published a second, of the corpus that is there."""
    with connect(settings, "bench") as connection:
        spec = connection.execute("SELECT label_spec_id AS id, corpus_id FROM gleaner.jobs LIMIT 1").fetchone()
        assert spec is not None
        job = connection.execute(
            "INSERT INTO gleaner.jobs (corpus_id, label_spec_id, model, state, priority, total, submitted_by)"
            " VALUES (%s, %s, 'bench', 'queued', 0, %s, 'bench') RETURNING id",
            [spec["corpus_id"], spec["id"], documents],
        ).fetchone()
        assert job is not None
        connection.execute(
            "INSERT INTO gleaner.chunks (job_id, chunk_no, first_ordinal, last_ordinal, size, state, attempt, failures)"
            " SELECT %s, n, n * %s, n * %s + %s - 1, %s, 'queued', 0, 0 FROM generate_series(0, %s) AS n",
            [job["id"], *[PUBLISHED_SIZE] * 4, documents // PUBLISHED_SIZE - 1],
        )
        began = time.monotonic()
        count = publish_open_chunks(connection, app, settings, job["id"], "bench", silent)
        seconds = time.monotonic() - began
    return {"chunks": count, "seconds": round(seconds, 2), "chunks_per_s": round(count / seconds)}


def measure(formats: list[str], documents: int, folder: Path) -> dict[str, Any]:
    """Every lane once."""
    results: dict[str, Any] = {"documents": documents}
    with tempfile.TemporaryDirectory(dir=folder) as name:
        services = Path(name)
        services.chmod(0o711)
        with Postgres(services / "postgres") as postgres, Valkey(services / "valkey") as valkey:
            environment = {
                **os.environ,
                "GLEANER_DATABASE_URL": postgres.url,
                "GLEANER_BROKER_URL": valkey.url,
                "GLEANER_DATABASE_STATEMENT_TIMEOUT_S": "0",
            }
            subprocess.run([sys.executable, "-m", "producer", "db", "upgrade"], env=environment, check=True)
            settings = Settings(
                database_url=postgres.url,
                broker_url=valkey.url,
                database_statement_timeout_s=0,
            )
            for kind in formats:
                path = folder / f"bench-{documents}.{kind}"
                if not path.exists():
                    write(path, documents)
                empty(postgres.superuser_url)
                seconds, peak, summary = enqueue(path, environment)
                assert summary["documents"] == documents, summary
                rows = services / "rows"
                with (
                    psycopg.connect(postgres.url) as connection,
                    rows.open("wb") as file,
                    connection.cursor().copy(f"COPY gleaner.documents ({_COLUMNS}) TO STDOUT") as copy,
                ):
                    file.writelines(map(bytes, copy))
                if "publishing" not in results:
                    with create_app(settings) as app:
                        results["publishing"] = publishing(settings, app, min(documents, 500_000))
                empty(postgres.superuser_url)
                bare = bare_copy(postgres.url, rows)
                results[kind] = {
                    "enqueue_s": round(seconds, 2),
                    "copy_s": round(bare, 2),
                    "documents_per_s": round(documents / seconds),
                    "to_copy": round(bare / seconds, 2),
                    "peak_mib": round(peak),
                }
                print(json.dumps({kind: results[kind]}), flush=True)
    return results


def table(results: dict[str, Any]) -> str:
    """The figures as a Markdown table."""
    lines = [
        "| format | documents | `producer enqueue` | documents/s | bare COPY | rate to COPY | peak memory |",
        "|---" * 7 + "|",
    ]
    for kind, lane in results.items():
        if kind not in ("documents", "publishing"):
            lines.append(
                f"| {kind} | {results['documents']:,} | {lane['enqueue_s']} s | {lane['documents_per_s']:,} | "
                f"{lane['copy_s']} s | {lane['to_copy']:.0%} | {lane['peak_mib']} MiB |"
            )
    published = results["publishing"]
    return "\n".join(
        [*lines, "", f"Publishing: {published['chunks']:,} chunks, {published['chunks_per_s']:,} a second."]
    )


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--formats", default="jsonl,csv,parquet")
    parser.add_argument("--folder", type=Path, default=Path("/var/tmp"), help=_FOLDER)  # noqa: S108
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    results = measure(arguments.formats.split(","), arguments.documents, arguments.folder)
    print(table(results))
    if arguments.out:
        arguments.out.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
