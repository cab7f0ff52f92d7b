"""What dies is started again, what was told to end is not; each supervisor in a process of its own."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ops.supervisor import MAX_QUICK_ENDS

REPOSITORY = Path(__file__).parents[2]
WAIT_S = 30

SUPERVISOR = """
import sys
from ops import supervisor
supervisor.FIRST_PAUSE_S, supervisor.MAX_PAUSE_S, supervisor.STEADY_S = map(float, sys.argv.pop(1).split())
supervisor.main()
"""
#: Ends each time as the next of the lines of a file says: with an exit code, or (negative) by a signal.
ENDING = """
import os, sys
from pathlib import Path
left = Path(sys.argv[1]).read_text().split()
Path(sys.argv[1]).write_text(" ".join(left[1:]))
print("a life", flush=True)
code = int(left[0])
os.kill(os.getpid(), -code) if code < 0 else sys.exit(code)
"""
TOLD = """
import signal, sys, time
def end(signum, _):
    print("told", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
print("a life", flush=True)
while True:
    time.sleep(1)
"""
#: Leaves a process behind the first time, and says the second time whether it is still there.
LEAVING = """
import os, pathlib, signal, subprocess, sys
note = pathlib.Path(sys.argv[1])
if not note.read_text():
    note.write_text(str(subprocess.Popen(["sleep", "600"]).pid))
    os.kill(os.getpid(), signal.SIGKILL)
stat = pathlib.Path("/proc") / note.read_text() / "stat"
print("left" if stat.exists() and stat.read_text().rpartition(")")[2].split()[0] not in "ZX" else "gone", flush=True)
"""


def supervise(script: str, *arguments: str, pause_s: float = 0.01, steady_s: float = WAIT_S) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", SUPERVISOR, f"{pause_s} {pause_s} {steady_s}", sys.executable, "-c", script, *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )  # fmt: skip


def lives(tmp_path: Path, *codes: int, steady_s: float = WAIT_S) -> tuple[int, int, str]:
    """How often a command was started that ends with these codes, the supervisor's own, and what was said."""
    file = tmp_path / "codes"
    file.write_text(" ".join(map(str, codes)))
    with supervise(ENDING, str(file), steady_s=steady_s) as process:
        said, _ = process.communicate(timeout=WAIT_S)
    return said.count("a life"), process.returncode, said


def test_what_dies_is_started_again_and_its_log_says_so(tmp_path: Path) -> None:
    started, code, said = lives(tmp_path, 70, -9, 1, 75, 0)
    assert (started, code) == (5, 0)
    assert "WARNING/supervisor] ended (exit code 137): starting it again in 0.01 s" in said
    assert said.splitlines()[-1].endswith("ended (exit code 0): not started again")


@pytest.mark.parametrize("code", [1, 2, 143])
def test_what_would_end_the_same_way_or_was_told_to_is_not(tmp_path: Path, code: int) -> None:
    assert lives(tmp_path, code, 0)[:2] == (1, code)


def test_quick_deaths_are_not_repeated_for_ever(tmp_path: Path) -> None:
    started, code, said = lives(tmp_path, *[-11] * MAX_QUICK_ENDS, 0)
    assert (started, code) == (MAX_QUICK_ENDS, 139)
    assert f"for the {MAX_QUICK_ENDS}th time within 30 s of its start: given up" in said


def test_one_that_asks_for_another_gets_it_each_time(tmp_path: Path) -> None:
    assert lives(tmp_path, *[70] * MAX_QUICK_ENDS, *[75] * 2, 0)[:2] == (MAX_QUICK_ENDS + 3, 0)


def test_one_that_had_stayed_up_is_not_quick(tmp_path: Path) -> None:
    assert lives(tmp_path, *[-9] * (MAX_QUICK_ENDS + 1), 0, steady_s=0)[:2] == (MAX_QUICK_ENDS + 2, 0)


def test_told_to_stop_it_tells_the_command_and_waits_for_it() -> None:
    with supervise(TOLD) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "a life\n"
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=WAIT_S)
    assert (process.returncode, said) == (0, "told\n")


def test_told_to_stop_in_a_pause_it_starts_nothing_more(tmp_path: Path) -> None:
    file = tmp_path / "codes"
    file.write_text("70 0")
    with supervise(ENDING, str(file), pause_s=600) as process:
        assert process.stdout is not None
        while "starting it again" not in process.stdout.readline():
            pass
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=WAIT_S)
    assert (process.returncode, said) == (0, "")


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no /proc here")
def test_what_a_dead_one_left_behind_is_ended_before_the_next(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    note.write_text("")
    with supervise(LEAVING, str(note)) as process:
        said, _ = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0
    assert "gone" in said
