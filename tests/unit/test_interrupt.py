"""Ctrl-C while a program is still being imported ends it without a word."""

import signal
import subprocess
import sys

import pytest

#: Runs a program; a SIGINT comes as its commands are imported.
RUN = """
import os, runpy, signal, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "PROGRAM.cli":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Finder())
runpy.run_module("PROGRAM", run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize("program", ["producer", "worker"])
def test_it_ends_at_once(program: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", RUN.replace("PROGRAM", program)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


@pytest.mark.parametrize("program", ["producer", "worker"])
def test_one_that_is_ignored_stays_ignored(program: str) -> None:
    ignored = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", sys.executable]
    run = [*ignored, "-c", RUN.replace("PROGRAM", program), "--help"]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Usage" in done.stdout
