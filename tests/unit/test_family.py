"""The processes below this one, and their end."""

import os
import subprocess
import sys
import time

import pytest

from worker import family
from worker.family import descendants, family_is_readable

WAIT_S = 20

#: Starts a child that starts a child, says both pids, and kills what is below it when told to.
PARENT = """
import subprocess, sys
from worker import family
CHILD = "import subprocess, sys; p = subprocess.Popen(['sleep', '600']); print(p.pid, flush=True); p.wait()"
child = subprocess.Popen([sys.executable, "-c", CHILD], stdout=subprocess.PIPE, text=True)
print(child.pid, child.stdout.readline().strip(), flush=True)
input()
family.kill_descendants()
print(child.wait(), flush=True)
"""


def _gone(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return stat.read().rpartition(b")")[2].split()[0] in (b"Z", b"X")
    except OSError:
        return True


@pytest.mark.skipif(not family_is_readable(), reason="no /proc here")
def test_children_and_theirs_are_killed_and_nobody_else() -> None:
    with (
        subprocess.Popen(["sleep", "600"]) as stranger,
        subprocess.Popen(
            [sys.executable, "-c", PARENT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(family.__file__))},
        ) as parent,
    ):
        assert parent.stdin is not None
        assert parent.stdout is not None
        child, grandchild = map(int, parent.stdout.readline().split())
        assert {child, grandchild} <= descendants(parent.pid)
        assert parent.pid not in descendants(parent.pid)
        parent.stdin.write("\n")
        parent.stdin.flush()
        assert parent.stdout.readline() == "-9\n"
        deadline = time.monotonic() + WAIT_S
        while not _gone(grandchild):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert stranger.poll() is None
        stranger.kill()


def test_without_proc_the_children_of_multiprocessing_are_killed(tmp_path, monkeypatch) -> None:
    killed = []

    class Child:
        def kill(self) -> None:
            killed.append(self)

    child = Child()
    monkeypatch.setattr(family, "PROC", tmp_path)
    monkeypatch.setattr(family.multiprocessing, "active_children", lambda: [child])
    family.kill_descendants()
    assert killed == [child]
