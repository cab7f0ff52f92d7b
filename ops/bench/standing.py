"""How long it takes to say where jobs stand, in a database with many of them.

    python -m ops.bench.standing [--documents 10000000] [--jobs 1000] [--folder FOLDER]

Half of the documents are one job's, half labelled; the others are shared by the other jobs, of which every twentieth is
live and half labelled, the rest done. Everything is generated in Postgres (without fsync: it takes minutes as it is),
rows of finished chunks too, and chunks are finished by an UPDATE as workers finish them. Prints the median of several
calls: of the statements, on a connection that is there, and of the command as a program of its own, which on a machine
that does other work too is better told by its CPU time. The floor is a program of Typer and psycopg that connects.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

import psycopg
from pydantic import SecretStr

from ops.services import Postgres, Valkey
from producer.standing import job_lines, job_standing
from schemas.database import connect
from schemas.settings import Settings

#: Calls of each; the first, which also plans, is not counted.
CALLS = 10
_FOLDER = "for the database"
_CHUNK = 256

# Of documents whose ordinal ends in 99 the label is invalid: some chunks have a row that is not ok, some none.
_GENERATE = """
INSERT INTO gleaner.label_specs (name, version, digest, json_schema, system_prompt, template, sampling, over_long)
    VALUES ('bench', 1, 'bench', '{}', 'p', '{text}', '{}', 'reject');
INSERT INTO gleaner.engines (digest, info) VALUES ('bench', '{"model": "bench"}');
CREATE TEMP TABLE sizes AS SELECT n, CASE n WHEN 1 THEN %(large)s ELSE %(small)s END AS size,
    n = 1 OR n %% 20 = 0 AS live FROM generate_series(1, %(jobs)s) AS n;
INSERT INTO gleaner.corpora (name, uri, fingerprint, field_mapping, selection, document_count, rejected_count,
    unselected_count) SELECT 'corpus ' || n, 'bench', n::text, '{}', '{}', size, 0, 0 FROM sizes ORDER BY n;
INSERT INTO gleaner.jobs (corpus_id, label_spec_id, model, state, priority, total, submitted_by, started_at)
    SELECT n, 1, 'bench', 'running', 0, size, 'bench', now() - interval '1 hour' FROM sizes ORDER BY n;
INSERT INTO gleaner.documents (corpus_id, ordinal, external_id, text, meta, content_hash, flags)
    SELECT n, o, 'd' || o, 'a document of the benchmark', '{}', '\\x00', '{}'
    FROM sizes, generate_series(0, size - 1) AS o;
INSERT INTO gleaner.chunks (job_id, chunk_no, first_ordinal, last_ordinal, size, state, attempt, failures)
    SELECT n, o / %(chunk)s, o, least(o + %(chunk)s, size) - 1, least(o + %(chunk)s, size) - o, 'running', 1, 0
    FROM sizes, generate_series(0, size - 1, %(chunk)s) AS o;
INSERT INTO gleaner.labels (job_id, ordinal, chunk_no, outcome, label, reason_code, dropped_tokens, parts, tries,
    attempt, worker, engine_id, prompt_tokens, output_tokens)
    SELECT n, o, o / %(chunk)s, CASE o %% 100 WHEN 99 THEN 'invalid' ELSE 'ok' END,
        CASE o %% 100 WHEN 99 THEN NULL ELSE '{"kind": "a"}'::jsonb END, CASE o %% 100 WHEN 99 THEN 'not_json' END,
        0, 1, 1, 1, 'w', 1, 100, 20
    FROM sizes, generate_series(0, CASE WHEN live THEN size / 2 ELSE size END - 1) AS o
"""
_FINISH = """
UPDATE gleaner.chunks AS chunk SET state = 'done', finished_at = now()
FROM sizes WHERE chunk.job_id = sizes.n AND (NOT live OR chunk.last_ordinal < sizes.size / 2)
"""
_END = """
UPDATE gleaner.jobs AS job SET state = 'done', finished_at = now(), final_counts = (
    SELECT jsonb_build_object('ok', ok, 'truncated', 0, 'invalid', invalid, 'rejected', 0, 'failed', 0, 'cancelled', 0)
    FROM gleaner.progress AS ledger WHERE ledger.job_id = job.id
) FROM sizes WHERE job.id = sizes.n AND NOT live
"""
_FLOOR = """
import os, psycopg, typer

def main(job: int) -> None:
    psycopg.connect(os.environ["GLEANER_DATABASE_URL"]).close()

typer.run(main)
"""


def generate(url: str, documents: int, jobs: int) -> dict[str, float]:
    """Fill the database; how long finishing a chunk took."""
    sizes = {"large": documents // 2, "small": documents // 2 // (jobs - 1), "jobs": jobs, "chunk": _CHUNK}
    with psycopg.connect(url, autocommit=True, cursor_factory=psycopg.ClientCursor) as connection:
        for statement in _GENERATE.split(";\n"):
            connection.execute(statement, sizes)
        connection.execute("VACUUM ANALYZE")
        began = time.monotonic()
        finished = connection.execute(_FINISH).rowcount
        seconds = time.monotonic() - began
        connection.execute(_END)
        connection.execute("VACUUM ANALYZE gleaner.chunks")
        return {"finish_ms_a_chunk": 1000 * seconds / finished}


def timed(call: Callable[[], object]) -> tuple[float, float]:
    """Median milliseconds of wall time, and of CPU time of the processes that it waits for."""
    wall, cpu = [], []
    for _ in range(CALLS + 1):
        began, used = time.monotonic(), _children_s()
        call()
        wall.append(1000 * (time.monotonic() - began))
        cpu.append(1000 * (_children_s() - used))
    return median(wall[1:]), median(cpu[1:])


def _children_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _show(what: str, statements: str, command: Callable[[], None]) -> None:
    wall, cpu = timed(command)
    print(f"| {what} | {statements} | {wall:,.0f} ms | {cpu:,.0f} ms |", flush=True)


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=10_000_000)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--folder", type=Path, default=Path("/var/tmp"), help=_FOLDER)  # noqa: S108
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        services = Path(name)
        services.chmod(0o711)
        fast = {"fsync": "off", "max_wal_size": "4GB"}
        with Postgres(services / "postgres", settings=fast) as postgres, Valkey(services / "valkey") as valkey:
            environment = {
                **os.environ,
                "GLEANER_DATABASE_URL": postgres.url,
                "GLEANER_BROKER_URL": valkey.url,
            }
            # A program that is installed is compiled once.
            environment.pop("PYTHONDONTWRITEBYTECODE", None)

            def python(*arguments: str) -> None:
                subprocess.run([sys.executable, *arguments], env=environment, check=True, stdout=subprocess.DEVNULL)

            python("-m", "producer", "db", "upgrade")
            figures = generate(postgres.url, arguments.documents, arguments.jobs)
            with connect(Settings(database_url=SecretStr(postgres.url)), "bench") as connection:
                statements: dict[str, Callable[[], object]] = {
                    "status": lambda: job_lines(connection, live_only=True, previews=True, limit=50),
                    "jobs --limit 1000": lambda: job_lines(connection, live_only=False, previews=False, limit=1000),
                    "status 1": lambda: job_standing(connection, 1),
                    "status 1 --audit": lambda: job_standing(connection, 1, audit=True),
                }
                print("| what | statements | command | its CPU time |\n|---|---|---|---|")
                for call, run in statements.items():
                    command = partial(python, "-m", "producer", *call.split())
                    _show(f"`producer {call}`", f"{timed(run)[0]:,.0f} ms", command)
                _show("the floor", "", partial(python, "-c", _FLOOR, "1"))
                for program in ("producer", "worker"):
                    _show(f"`{program} --help`", "", partial(python, "-m", program, "--help"))
    print(f"\nFinishing a chunk with its counts: {figures['finish_ms_a_chunk']:.2f} ms.")


if __name__ == "__main__":
    main()
