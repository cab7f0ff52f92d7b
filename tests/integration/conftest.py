"""Workers as processes, and a real server to talk to: `vllm serve` on the CPU with the demo's model."""

import importlib.util
import json
import os
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from worker_process import enqueue_job, start_worker  # noqa: F401 (fixtures)

from ops.demo_model import NAME, ensure_model
from ops.processes import SupervisedProcess
from ops.service import HOST, free_port
from schemas.engine_settings import LONGEST_CONTEXT
from schemas.settings import Settings
from worker.engine.profiles import PROFILES
from worker.engine.vllm import engine_arguments

#: Seconds until the server must answer: it takes 40 to 120 on two cores.
START_TIMEOUT_S = 300
#: Seconds between two looks at a server that starts.
LOOK_S = 0.5
#: Seconds that the server may take to stop.
STOP_TIMEOUT_S = 30


@dataclass(frozen=True)
class ServedModel:
    """An OpenAI-compatible server and the model it serves."""

    base_url: str
    api_key: str
    model: str
    log_file: Path


@pytest.fixture(scope="session")
def vllm_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedModel]:
    """`vllm serve` with the CPU profile's arguments. In CI a missing vLLM fails, elsewhere it skips."""
    if importlib.util.find_spec("vllm") is None:
        message = "vLLM is missing: make setup ENGINE=vllm"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    profile = PROFILES["cpu"]
    settings = Settings(
        engine_profile="cpu", model=NAME, model_path=str(ensure_model()), max_model_len=LONGEST_CONTEXT["cpu"]
    )
    port, folder, key = free_port(), tmp_path_factory.mktemp("vllm-server"), "key-of-the-test"
    server = SupervisedProcess("vllm serve", pid_file=folder / "server.pid", log_file=folder / "server.log")
    arguments = engine_arguments(settings) | {"host": HOST, "port": port, "enable_prompt_tokens_details": True}
    server.start(
        # Not `vllm serve`, which is the same: that command fails on the CPU build, a package of another name.
        [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *_flags(arguments)],
        env={
            **{name: value for name, value in os.environ.items() if not name.startswith("GLEANER_")},
            **profile.environment,
            "VLLM_API_KEY": key,
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
        },
        cwd=folder,
    )
    try:
        _wait_until_healthy(f"http://{HOST}:{port}/health", server)
        yield ServedModel(f"http://{HOST}:{port}/v1", key, NAME, server.log_file)
    finally:
        server.stop(STOP_TIMEOUT_S)


def _flags(arguments: Mapping[str, Any]) -> list[str]:
    flags = []
    for name, value in arguments.items():
        flag = name.replace("_", "-")
        if value is None:
            continue
        if isinstance(value, bool):
            flags.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            flags += [f"--{flag}", json.dumps(value) if isinstance(value, dict) else str(value)]
    return flags


def _wait_until_healthy(url: str, server: SupervisedProcess) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while not _healthy(url):
        if server.wait(LOOK_S) or time.monotonic() > deadline:
            pytest.fail(f"vllm serve did not start:\n{server.log_tail()}")


def _healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
