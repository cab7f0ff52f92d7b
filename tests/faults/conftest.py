"""The fault matrix: real Postgres, Valkey, Celery and CLI; one fault a test, at a moment drawn from the printed seed.

``--fault-seed N --fault-runs N`` choose the draws: run R of a test draws from seed N + R, which is part of its id, so
that ``--fault-seed`` with that number repeats it. No test repairs anything: what ends is started again by the fleet's
supervisor, as it would be in production, and nothing else is done by hand.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import psycopg
import pytest
from alembic import command
from courier import Courier
from fleet import BRIEF, Fleet
from hosts import GATEWAYS
from ledger import Enqueue, Job
from psycopg import sql
from pydantic import SecretStr

from migrations import alembic_config
from ops.service import HOST
from ops.services import OWNER_ROLE, Postgres, Valkey
from schemas.settings import Settings, load_settings

#: Seconds for the largest backlog to be loaded, cut and published: many times what it takes on an idle machine.
ENQUEUE_S = 600
#: Chunks that wait for a slow consumer, but where more are asked for.
BACKLOG = 5_000
#: Lines of a log that a failure shows.
TAIL_LINES = 60


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "chance" in metafunc.fixturenames:
        first, runs = metafunc.config.option.fault_seed, metafunc.config.option.fault_runs
        seeds = range(first, first + runs)
        metafunc.parametrize("chance", seeds, ids=[f"seed={seed}" for seed in seeds], indirect=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """Add the logs of the fleet to the report of a test that failed."""
    report = yield
    fleet = getattr(item, "funcargs", {}).get("fleet")
    if report.failed and fleet is not None:
        for member in fleet.members:
            tail = "\n".join(member.log.splitlines()[-TAIL_LINES:])
            report.sections.append((f"{member.name}, which ended with {member.endings}", tail))
    return report


@pytest.fixture
def chance(request: pytest.FixtureRequest) -> Random:
    """What decides when and where the fault strikes."""
    return Random(f"{request.function.__name__} {request.param}")


@pytest.fixture
def backlog(request: pytest.FixtureRequest, pytestconfig: pytest.Config) -> int:
    """Chunks that wait for a slow consumer: in the first run as many as asked for, in others what takes seconds."""
    first = request.node.callspec.params["chance"] == pytestconfig.option.fault_seed
    return int(pytestconfig.option.fault_backlog) if first else BACKLOG


@pytest.fixture
def brief(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Brief settings for every process that the test starts."""
    for name, value in BRIEF.items():
        monkeypatch.setenv(f"GLEANER_{name}", value)
    load_settings.cache_clear()


@pytest.fixture
def own_valkey(brief: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Valkey]:
    """A broker of this test's own, to be killed."""
    with Valkey(tmp_path / "valkey") as server:
        monkeypatch.setenv("GLEANER_BROKER_URL", server.url)
        load_settings.cache_clear()
        yield server
    server.remove()


@pytest.fixture(scope="module")
def mortal_postgres(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    """A migrated Postgres server beside the session's, for tests that kill it."""
    settings: dict[str, str | int] = {
        "fsync": "off",  # a killed server loses nothing by that; a killed machine would
        # Of addresses that are not there, as those of links to hosts mostly are, it only says so.
        "listen_addresses": ",".join([HOST, *GATEWAYS]),
    }
    with Postgres(tmp_path_factory.mktemp("mortal"), settings=settings) as server:
        command.upgrade(alembic_config(Settings(database_url=SecretStr(server.url))), "head")
        yield server
    server.remove()


@pytest.fixture
def own_postgres(mortal_postgres: Postgres, brief: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Postgres]:
    """A fresh database on a server that may be killed; it runs again at the end."""
    server, name = mortal_postgres, sql.Identifier("own")
    with psycopg.connect(server.superuser_url, dbname="postgres", autocommit=True) as connection:
        connection.execute(
            sql.SQL("CREATE DATABASE {} OWNER {} TEMPLATE gleaner").format(name, sql.Identifier(OWNER_ROLE))
        )
    monkeypatch.setenv("GLEANER_DATABASE_URL", server.url.removesuffix("gleaner") + "own")
    load_settings.cache_clear()
    yield server
    server.start()
    with psycopg.connect(server.superuser_url, dbname="postgres", autocommit=True) as connection:
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(name))


@pytest.fixture
def fleet(brief: None, tmp_path: Path) -> Iterator[Fleet]:
    """The workers and reconcilers of the test: what ends is started again."""
    fleet = Fleet(tmp_path)
    yield fleet
    fleet.close()


@pytest.fixture
def courier(brief: None, request: pytest.FixtureRequest) -> Iterator[Courier]:
    """The broker that the test uses."""
    if "own_valkey" in request.fixturenames:
        request.getfixturevalue("own_valkey")
    courier = Courier(load_settings())
    yield courier
    courier.close()


@pytest.fixture
def enqueue(brief: None, run_cli: Callable[..., Any], write_corpus: Callable[..., Path]) -> Iterator[Enqueue]:
    """Enqueues a job of so many documents, cut into chunks of so many."""
    jobs: list[Job] = []

    def enqueue(documents: int, chunk_size: int, texts: dict[int, str] | None = None) -> Job:
        """:param texts: of documents that are not like the others, by ordinal."""
        records = [{"id": n, "text": f"package {n} does one thing"} for n in range(documents)]
        for ordinal, text in (texts or {}).items():
            records[ordinal]["text"] = text
        corpus = write_corpus(records, f"corpus-{len(jobs)}.jsonl")
        call = ["enqueue", corpus, "--schema", "packages", "--chunk-size", str(chunk_size), "--json"]
        done = run_cli(*call, timeout_s=ENQUEUE_S)
        assert done.returncode == 0, done.stderr
        jobs.append(Job(load_settings(), json.loads(done.stdout)["job_id"], documents))
        return jobs[-1]

    yield enqueue
    for job in jobs:
        job.close()
