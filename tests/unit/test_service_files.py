"""The units, manifests and the compose file that start workers, as far as they can be checked without a cluster."""

import re
import shutil
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import pytest

from schemas.settings import Settings
from worker.endpoint import FIRST_PORT

REPOSITORY = Path(__file__).parents[2]
UNITS = sorted((REPOSITORY / "ops" / "systemd").glob("*.service"))
MANIFESTS = sorted((REPOSITORY / "ops" / "kubernetes").glob("*.yaml"))
COMPOSE = REPOSITORY / "docker-compose.yml"
DEFAULTS = Settings()
#: Not settings: what compose makes passwords of.
COMPOSE_ONLY = {"DB_PASSWORD", "BROKER_PASSWORD", "MODELS"}


def _read(path: Path) -> Any:
    yaml = pytest.importorskip("yaml")
    return yaml.safe_load(path.read_text())


def _container(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The pod's spec and its one container."""
    pod = _read(REPOSITORY / "ops" / "kubernetes" / name)["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    return pod, container


@pytest.mark.parametrize("path", [*UNITS, *MANIFESTS, COMPOSE], ids=lambda path: path.name)
def test_what_they_set_are_settings(path: Path) -> None:
    named = set(re.findall(r"GLEANER_([A-Z_0-9]+)", path.read_text()))
    assert {name for name in named if name.lower() not in Settings.model_fields} <= COMPOSE_ONLY


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here")
def test_the_units_are_sound(tmp_path: Path) -> None:
    copies = []
    for unit in UNITS:
        copies.append(tmp_path / unit.name)
        # A program that is there; an instance of the template.
        copies[-1].write_text(re.sub(r"/opt/gleaner/bin/\w+", sys.executable, unit.read_text()))
    copies = [copy.rename(copy.with_name(copy.name.replace("@.", "@0."))) for copy in copies]
    verified = subprocess.run(
        ["systemd-analyze", "verify", *map(str, copies)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (verified.returncode, verified.stderr) == (0, "")


def test_the_workers_unit_stops_it_as_it_wants_to_be_stopped() -> None:
    unit = ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(REPOSITORY / "ops" / "systemd" / "gleaner-worker@.service")
    service = unit["Service"]
    assert service["KillMode"] == "mixed"
    assert float(service["TimeoutStopSec"]) > DEFAULTS.shutdown_s
    assert (service["Restart"], service["RestartPreventExitStatus"]) == ("always", "2")


def test_the_workers_pod() -> None:
    pod, worker = _container("worker.yaml")
    variables = {variable["name"]: variable["value"] for variable in worker["env"]}
    (port,) = worker["ports"]
    assert pod["terminationGracePeriodSeconds"] > DEFAULTS.shutdown_s
    assert variables["GLEANER_HEALTH_HOST"] == "0.0.0.0"
    assert int(variables["GLEANER_HEALTH_PORT"]) == port["containerPort"] == FIRST_PORT
    probes = {name: worker[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")}
    assert probes == {
        "startup": {"path": "/ready", "port": port["name"]},
        "liveness": {"path": "/health", "port": port["name"]},
        "readiness": {"path": "/ready", "port": port["name"]},
    }
    assert worker["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert worker["args"] == ["start"]


@pytest.mark.parametrize("name", [path.name for path in MANIFESTS])
def test_secrets_come_from_a_secret(name: str) -> None:
    _, container = _container(name)
    assert container["envFrom"] == [{"secretRef": {"name": "gleaner"}}]
    assert not {v["name"] for v in container.get("env", [])} & {"GLEANER_DATABASE_URL", "GLEANER_BROKER_URL"}


def test_compose_asks_the_worker_for_its_health() -> None:
    worker = _read(COMPOSE)["services"]["worker"]
    assert (
        f"http://127.0.0.1:{worker['environment']['GLEANER_HEALTH_PORT']}/health" in worker["healthcheck"]["test"][-1]
    )
    assert float(worker["stop_grace_period"].removesuffix("s")) > DEFAULTS.shutdown_s
