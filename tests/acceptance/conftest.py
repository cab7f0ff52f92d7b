"""The real engine on the CPU, started once for the whole suite: `worker start` as an operator types it."""

import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from pydantic import SecretStr

from ops.demo_model import NAME, ensure_model
from ops.services import OWNER_ROLE, Postgres, Valkey
from schemas.database import Connection, connect
from schemas.queue import create_app
from schemas.settings import Settings

#: Seconds until the engine must serve: it takes 40 to 60 on two idle cores.
START_TIMEOUT_S = 400
#: Seconds for a job of some hundred short labels on two cores.
JOB_TIMEOUT_S = 280

DATABASE = "real_engine"
PREFIX = "real-engine:"


@dataclass
class RealWorker:
    """A running worker with the real model, and the environment in which its producers run."""

    environment: dict[str, str]
    settings: Settings
    folder: Path
    process: subprocess.Popen[bytes]
    log: Path

    def producer(self, *args: str | Path) -> subprocess.CompletedProcess[str]:
        """Run ``producer ARGS`` and return its exit code and output."""
        return subprocess.run(
            [sys.executable, "-m", "producer", *map(str, args)],
            env=self.environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=JOB_TIMEOUT_S,
            check=False,
        )

    def connect(self) -> Connection:
        """A connection to its database."""
        return connect(self.settings, "acceptance")


@pytest.fixture(scope="session")
def real_worker(
    postgres: Postgres, valkey: Valkey, _template_database: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RealWorker]:
    """A worker with vLLM on the CPU and the small model. In CI a missing engine fails, elsewhere it skips."""
    if importlib.util.find_spec("vllm") is None:
        message = "vLLM is missing: make setup ENGINE=vllm"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    with psycopg.connect(postgres.superuser_url, autocommit=True) as connection:
        connection.execute(
            sql.SQL("CREATE DATABASE {} OWNER {} TEMPLATE {}").format(
                sql.Identifier(DATABASE), sql.Identifier(OWNER_ROLE), sql.Identifier(_template_database)
            )
        )
    variables = {
        "GLEANER_DATABASE_URL": postgres.url.removesuffix("/gleaner") + f"/{DATABASE}",
        "GLEANER_BROKER_URL": valkey.url,
        "GLEANER_BROKER_KEY_PREFIX": PREFIX,
        "GLEANER_ENGINE": "vllm",
        "GLEANER_ENGINE_PROFILE": "cpu",
        "GLEANER_MODEL": NAME,
        "GLEANER_MODEL_PATH": str(ensure_model()),
    }
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("GLEANER_")}
    settings = Settings(
        database_url=SecretStr(variables["GLEANER_DATABASE_URL"]),
        broker_url=SecretStr(valkey.url),
        broker_key_prefix=PREFIX,
        model=NAME,
    )
    folder = tmp_path_factory.mktemp("real-engine")
    log = folder / "worker.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "worker", "start", "--name", "real"],
            env=inherited | variables,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    worker = RealWorker(inherited | variables, settings, folder, process, log)
    try:
        _wait_until_it_answers(worker)
        yield worker
        process.terminate()
        assert process.wait(timeout=90) == 0, log.read_text()[-3000:]
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def _wait_until_it_answers(worker: RealWorker) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    with create_app(worker.settings) as app:
        while not app.control.ping(timeout=1):
            if worker.process.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"the worker did not start:\n{worker.log.read_text()[-3000:]}")
