"""A worker's name stays the same from start to start, and its compile cache is its own."""

import os
import socket

import pytest

from schemas.errors import UsageError
from worker.identity import default_name, node_name, set_compile_cache


@pytest.fixture(autouse=True)
def no_cache_root(monkeypatch) -> None:
    """Set first, so that what a test leaves is taken away after it."""
    monkeypatch.setenv("VLLM_CACHE_ROOT", "")
    monkeypatch.delenv("VLLM_CACHE_ROOT")


@pytest.mark.parametrize(
    ("devices", "name"),
    [
        (None, "worker-0"),
        ("", "worker-0"),
        ("3", "worker-3"),
        ("0,1", "worker-0-1"),
        ("GPU-8f3c/1", "worker-GPU-8f3c-1"),
    ],
)
def test_the_default_name_is_the_gpus(monkeypatch, devices, name) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if devices is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", devices)
    assert default_name() == name
    assert node_name(name) == f"{name}@{socket.gethostname()}"


@pytest.mark.parametrize("name", ["", "a b", "a@b", "../x", "a/b", ".hidden"])
def test_a_name_that_is_no_folder_is_refused(name) -> None:
    with pytest.raises(UsageError, match="--name"):
        node_name(name)


def test_each_worker_has_a_compile_cache_of_its_own(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    set_compile_cache("gpu1")
    assert os.environ["VLLM_CACHE_ROOT"] == str(tmp_path / "gleaner" / "vllm" / "gpu1")
    set_compile_cache("gpu2")  # what the environment says wins
    assert os.environ["VLLM_CACHE_ROOT"].endswith("gpu1")


def test_without_xdg_it_lies_in_the_home_folder(monkeypatch, tmp_path) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    set_compile_cache("gpu1")
    assert os.environ["VLLM_CACHE_ROOT"] == str(tmp_path / ".cache" / "gleaner" / "vllm" / "gpu1")
