"""A worker's name: its node in Flower, the owner of its leases, the folder of its compile cache."""

import os
import re
import socket
from pathlib import Path

from celery import Celery

from schemas.errors import GleanerError, UsageError

#: Seconds a live worker of the same name has to answer. It takes milliseconds, more while its engine loads the CPU.
PING_S = 1.0

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


class NameTaken(GleanerError):
    """Another worker of this name runs on this host: give this one another with --name."""


def default_name() -> str:
    """``worker-`` and the GPU that this process sees. The same after a restart, so that the compile cache is found."""
    devices = re.sub(r"[^A-Za-z0-9.]+", "-", os.environ.get("CUDA_VISIBLE_DEVICES", "")).strip("-")
    return f"worker-{devices or 0}"


def node_name(name: str) -> str:
    """The name with its host, as Celery and Flower have it.

    :raises UsageError: for a name that can't be a folder's and a node's.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(f"--name {name!r}: use letters, digits, dots, dashes and underscores")
    return f"{name}@{socket.gethostname()}"


def require_only_one(app: Celery, node: str) -> None:
    """Check that no worker of this name answers.

    :raises NameTaken: when one does.
    """
    if app.control.ping(destination=[node], timeout=PING_S, limit=1):
        name, _, host = node.partition("@")
        raise NameTaken(f"a worker named {name} is already running on {host}: give this one another --name")


def set_compile_cache(name: str) -> None:
    """Give vLLM a cache folder of this worker's own: two workers that share one can corrupt it.

    The folder is named by the worker and not by its host, so that a home directory on the network or a volume of a
    container serves after a move. ``VLLM_CACHE_ROOT`` of the environment wins. Before vLLM is imported.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    os.environ.setdefault("VLLM_CACHE_ROOT", str(cache / "gleaner" / "vllm" / name))
