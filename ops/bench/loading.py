"""Loading a corpus beside a bare COPY of the same rows into the same table, and publishing its chunks.

    python -m ops.bench.loading [--documents 1000000] [--formats jsonl,csv,parquet] [--runs 1] [--folder FOLDER]

Everything runs on this machine: Postgres (with fsync) and Valkey from packages, started for it. For each format a file
of documents of 500 characters with an id and three fields of metadata is made once and kept in the folder. Then, in
turn: `producer enqueue` as a program of its own (start, hash, load, cut, publish: all of it), and a bare COPY of the
rows that this left, from a file of Postgres's own text format into the same table, indexes and all. The table is
emptied before each; Postgres does not vacuum of itself meanwhile. Prints the table of ops/BENCHMARKS.md.
"""

import argparse
import csv
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import psycopg
from celery import Celery

from ops.services import Postgres, Valkey
from producer.progress import silent
from producer.publish import publish_waiting
from schemas.database import connect
from schemas.queue import create_app
from schemas.settings import Settings

#: Characters of a document.
CHARS = 500
#: Documents a chunk where publishing is measured: many chunks from few documents.
PUBLISHED_SIZE = 25
#: Seconds after which Postgres has surely taken leave of a connection: its processor time counts only then.
REAPED_S = 1.0
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


@dataclass
class Lane:
    """One way to fill the table: the fastest of its runs."""

    seconds: float = math.inf
    load_s: float = math.inf  #: of them from the first row to the commit
    client_cpu_s: float = math.inf
    server_cpu_s: float = math.inf
    peak_mib: float = 0.0

    def take(self, other: "Lane") -> None:
        """Keep the better figure of each; of memory the worse."""
        for name in ("seconds", "load_s", "client_cpu_s", "server_cpu_s"):
            setattr(self, name, min(getattr(self, name), getattr(other, name)))
        self.peak_mib = max(self.peak_mib, other.peak_mib)


def server_cpu(postmaster: int) -> float:
    """Processor seconds of a Postgres server and of every connection that has ended."""
    fields = Path(f"/proc/{postmaster}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def enqueue(path: Path, documents: int, environment: dict[str, str], postmaster: int) -> Lane:
    """One call of the command, as a program of its own."""
    before = server_cpu(postmaster)
    began = time.monotonic()
    with tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "producer", "enqueue", str(path), "--schema", "papers", "--json"],
            env=environment,
            stdout=out,
            stderr=subprocess.DEVNULL,
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.monotonic() - began
        out.seek(0)
        if process.returncode or json.load(out)["documents"] != documents:
            raise RuntimeError(f"enqueue ended with exit code {process.returncode}, or did not load every record")
    with psycopg.connect(environment["GLEANER_DATABASE_URL"]) as connection:
        # Both are the beginning of a transaction: of the one that loads, and of the one after it.
        row = connection.execute(
            "SELECT extract(epoch FROM job.created_at - corpus.loaded_at)::float"
            " FROM gleaner.jobs AS job, gleaner.corpora AS corpus"
        ).fetchone()
        assert row is not None
    time.sleep(REAPED_S)
    cpu = usage.ru_utime + usage.ru_stime
    return Lane(seconds, row[0], cpu, server_cpu(postmaster) - before, usage.ru_maxrss / 1024)


def bare_copy(url: str, rows: Path, postmaster: int) -> Lane:
    """A COPY of all rows, in one transaction, from Postgres's own format."""
    before, client = server_cpu(postmaster), time.process_time()
    with psycopg.connect(url) as connection:
        began = time.monotonic()
        with (
            connection.cursor().copy(f"COPY gleaner.documents ({_COLUMNS}) FROM STDIN") as copy,
            rows.open("rb") as file,
        ):
            while block := file.read(_BLOCK):
                copy.write(block)
        connection.commit()
        seconds = time.monotonic() - began
    client = time.process_time() - client
    time.sleep(REAPED_S)
    return Lane(seconds, seconds, client, server_cpu(postmaster) - before)


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
        count = publish_waiting(connection, app, settings, "bench", silent)
        seconds = time.monotonic() - began
    return {"chunks": count, "seconds": round(seconds, 2), "chunks_per_s": round(count / seconds)}


def measure(formats: list[str], documents: int, folder: Path, runs: int, *, copies: bool) -> dict[str, Any]:
    """Every lane, in turn, so many times. ``copies``: bare ones beside it."""
    results: dict[str, Any] = {"documents": documents}
    with tempfile.TemporaryDirectory(dir=folder) as name:
        services = Path(name)
        services.chmod(0o711)
        with (
            Postgres(services / "postgres", settings={"autovacuum": "off"}) as postgres,
            Valkey(services / "valkey") as valkey,
        ):
            environment = {
                **os.environ,
                "GLEANER_DATABASE_URL": postgres.url,
                "GLEANER_BROKER_URL": valkey.url,
            }
            subprocess.run([sys.executable, "-m", "producer", "db", "upgrade"], env=environment, check=True)
            settings = Settings(
                database_url=postgres.url,
                broker_url=valkey.url,
                database_statement_timeout_s=0,
            )
            postmaster = postgres.process.pid
            assert postmaster is not None
            rows = services / "rows"
            for kind in formats:
                path = folder / f"bench-{documents}.{kind}"
                if not path.exists():
                    write(path, documents)
                lane, bare = Lane(), Lane()
                for _ in range(runs):
                    empty(postgres.superuser_url)
                    lane.take(enqueue(path, documents, environment, postmaster))
                    if "publishing" not in results:
                        with create_app(settings) as app:
                            results["publishing"] = publishing(settings, app, min(documents, 500_000))
                    if copies:
                        copy_out(postgres.url, rows)
                        empty(postgres.superuser_url)
                        bare.take(bare_copy(postgres.url, rows, postmaster))
                results[kind] = {"enqueue": asdict(lane), "copy": asdict(bare)}
                print(json.dumps({kind: results[kind]}), file=sys.stderr, flush=True)
    return results


def copy_out(url: str, rows: Path) -> None:
    """Keep all documents as a file of Postgres's own format."""
    with (
        psycopg.connect(url) as connection,
        rows.open("wb") as file,
        connection.cursor().copy(f"COPY gleaner.documents ({_COLUMNS}) TO STDOUT") as copy,
    ):
        file.writelines(map(bytes, copy))


def table(results: dict[str, Any]) -> str:
    """The figures as a Markdown table. Processor time is that of one document, of client and server."""
    documents = results["documents"]
    lines = [
        "| format | documents | enqueue, all of it | of it loading | a document | CPU a document | peak memory |"
        " bare COPY | CPU of it | loading at |",
        "|---" * 10 + "|",
    ]
    for kind, lanes in results.items():
        if kind in ("documents", "publishing"):
            continue
        lane, bare = lanes["enqueue"], lanes["copy"]
        cpu, bare_cpu = (
            f"{1e6 * one['client_cpu_s'] / documents:.1f} + {1e6 * one['server_cpu_s'] / documents:.1f} µs"
            for one in (lane, bare)
        )
        lines.append(
            f"| {kind} | {documents:,} | {lane['seconds']:.1f} s | {lane['load_s']:.1f} s |"
            f" {1e6 * lane['load_s'] / documents:.1f} µs | {cpu} | {lane['peak_mib']:.0f} MiB |"
            + (
                f" {bare['seconds']:.1f} s | {bare_cpu} | {bare['seconds'] / lane['load_s']:.0%} |"
                if math.isfinite(bare["seconds"])
                else " | | |"
            )
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
    parser.add_argument("--runs", type=int, default=1, help="of each; the fastest counts")
    parser.add_argument("--folder", type=Path, default=Path("/var/tmp"), help=_FOLDER)  # noqa: S108
    parser.add_argument("--no-copy", dest="copy", action="store_false", help="without the bare COPY")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    results = measure(
        arguments.formats.split(","), arguments.documents, arguments.folder, arguments.runs, copies=arguments.copy
    )
    print(table(results))
    if arguments.out:
        arguments.out.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
