"""Signals that end a worker, and an end that waits for nobody. Each in a process of its own."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from worker.leaving import LAST_WORD_S

REPOSITORY = Path(__file__).parents[2]
WAIT_S = 20
#: What leaving may take beside the last word on a busy machine.
MARGIN_S = 3.0

LISTENING = """
import logging, os, threading, time
from worker.leaving import leave_at_once
from worker.signals import listen_for_signals
logging.basicConfig(level="INFO", format="%(message)s")
def free():
    FREE
def abort(signum):
    leave_at_once(128 + signum, f"aborted by {signum.name}", free)
listen_for_signals(lambda: print("told", flush=True), abort)
print("ready", flush=True)
MAIN
"""

SLEEP = "while True: time.sleep(1)"
#: The main thread waits for itself in C, where no handler of Python's is called: as a driver may make it.
HELD_UP = "import ctypes; libc, lock = ctypes.CDLL(None), ctypes.create_string_buffer(256); " + 2 * (
    "libc.pthread_mutex_lock(lock); "
)


def _start(main: str = SLEEP, free: str = "print('freed', flush=True)") -> "subprocess.Popen[str]":
    process = subprocess.Popen(
        [sys.executable, "-c", LISTENING.replace("MAIN", main).replace("FREE", free)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize(("signum", "exit_code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_the_second_signal_ends_it(signum, exit_code) -> None:
    with _start() as process:
        assert process.stdout is not None
        process.send_signal(signum)
        assert process.stdout.readline() == "told\n"
        assert process.poll() is None
        process.send_signal(signum)
        assert process.wait(WAIT_S) == exit_code
        assert process.stdout.read() == f"aborted by {signum.name}\nfreed\n"


def test_sigquit_ends_it_at_once() -> None:
    with _start() as process:
        assert process.stdout is not None
        process.send_signal(signal.SIGQUIT)
        assert process.wait(WAIT_S) == 128 + signal.SIGQUIT
        assert process.stdout.read() == "aborted by SIGQUIT\nfreed\n"


@pytest.mark.parametrize("free", ["time.sleep(600)", "raise RuntimeError('Postgres is gone')"], ids=["hangs", "fails"])
def test_nothing_is_waited_for(free) -> None:
    with _start(free=free) as process:
        assert process.stdout is not None
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "told\n"
        asked = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 143
        assert time.monotonic() - asked < LAST_WORD_S + MARGIN_S
        said = process.stdout.read()
        assert said.startswith("aborted by SIGTERM\n")
        assert ("their leases run out: Postgres is gone" in said) == ("raise" in free)


@pytest.mark.skipif(sys.platform != "linux", reason="a lock of zeros is good on Linux")
def test_a_main_thread_that_is_held_up_does_not_matter() -> None:
    with _start(main=HELD_UP) as process:
        assert process.stdout is not None
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "told\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 143


def test_what_it_started_ends_with_it() -> None:
    main = "import subprocess\nprint(subprocess.Popen(['sleep', '600']).pid, flush=True)\n" + SLEEP
    with _start(main=main) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "told\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 143
    deadline = time.monotonic() + WAIT_S
    while _runs(child):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in (b"Z", b"X")
