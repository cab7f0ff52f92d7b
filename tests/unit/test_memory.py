"""Memory of a process and its children, as Linux tells it."""

import os
import subprocess
import sys

import pytest

from worker import family
from worker.memory import memory_is_readable, resident_bytes

MIB = 1024**2

pytestmark = pytest.mark.skipif(not memory_is_readable(), reason="no /proc here")


def test_this_process_counts() -> None:
    before = resident_bytes()
    held = b"x" * (64 * MIB)
    assert resident_bytes() - before > 32 * MIB
    del held


def test_children_and_theirs_count() -> None:
    before = resident_bytes()
    grandchild = "held = b'x' * (64 * 1024**2); print('ready', flush=True); input()"
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {grandchild!r}])"
    with subprocess.Popen(
        [sys.executable, "-c", child], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        assert resident_bytes() - before > 64 * MIB
        process.communicate("\n")


def test_a_name_with_brackets_and_spaces_is_no_trap(tmp_path, monkeypatch) -> None:
    for pid, parent, pages in ((os.getpid(), 1, 10), (7, os.getpid(), 5), (8, 7, 2), (9, 1, 100)):
        folder = tmp_path / str(pid)
        folder.mkdir()
        (folder / "stat").write_bytes(b"%d (a) 1 (b) S %d 0 0" % (pid, parent))
        (folder / "statm").write_bytes(b"999 %d 1 1 0 1 0" % pages)
    (tmp_path / "meminfo").write_bytes(b"")
    (tmp_path / "10").mkdir()  # ended between the listing and the look
    monkeypatch.setattr(family, "PROC", tmp_path)
    assert resident_bytes() == 17 * os.sysconf("SC_PAGE_SIZE")


def test_a_system_without_it_is_known(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(family, "PROC", tmp_path)
    assert not memory_is_readable()
