"""Hosts of a test on this machine: network namespaces on links that can be cut, and clocks that are wrong."""

import os
import shutil
import subprocess
from ipaddress import ip_address
from pathlib import Path

import pytest

#: Addresses for the links: of the range that is set apart for tests of networks (RFC 2544), so that none is in use.
NETWORK = "198.18.0.0/16"
#: This machine's address on the link to each host: where the host finds the services.
GATEWAYS = ("198.18.1.1", "198.18.2.1")
#: Shifts what a process takes for the time of day. The monotonic clock stays: clocks that go wrong do so by the hour
#: hand, and no host counts seconds wrongly.
SHIFT_SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

static time_t shift(void) {
    const char *seconds = getenv("CLOCK_SHIFT_S");
    return seconds ? atol(seconds) : 0;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(clock, now);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += shift();
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec precise;
    int failed = clock_gettime(CLOCK_REALTIME, &precise);
    if (!failed && now) {
        now->tv_sec = precise.tv_sec;
        now->tv_usec = precise.tv_nsec / 1000;
    }
    return failed;
}

time_t time(time_t *now) {
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    if (now) *now = precise.tv_sec;
    return precise.tv_sec;
}
"""


def unable(message: str) -> None:
    """Skip the test, because this machine can't do what it needs; in CI that is a failure."""
    if os.environ.get("CI") == "true":
        pytest.fail(message)
    pytest.skip(message)


class Host:
    """A network namespace on a link of its own to this machine."""

    def __init__(self, gateway: str) -> None:
        """:param gateway: one of :data:`GATEWAYS`; the next address is the host's."""
        self.gateway = gateway
        number = GATEWAYS.index(gateway)
        self._name = f"gleaner-{os.getpid()}-{number}"
        self._link = f"gl{os.getpid()}h{number}"  # 15 characters at most
        #: What a command is run by to run on the host.
        self.prefix = ["ip", "netns", "exec", self._name]
        if not shutil.which("ip"):
            unable("iproute2 is missing: apt-get install iproute2")
        try:
            self._set_up(str(ip_address(gateway) + 1))
        except subprocess.CalledProcessError as error:
            self.close()
            unable(f"no network namespaces here, which takes root: {error.stderr.strip()}")

    def _set_up(self, address: str) -> None:
        inner = f"{self._link}i"
        _ip("netns", "add", self._name)
        _ip("link", "add", self._link, "type", "veth", "peer", "name", inner, "netns", self._name)
        _ip("address", "add", f"{self.gateway}/30", "dev", self._link)
        _ip("-n", self._name, "address", "add", f"{address}/30", "dev", inner)
        for device in ("lo", inner):
            _ip("-n", self._name, "link", "set", device, "up")
        self.heal()

    def cut(self) -> None:
        """Let nothing through: no packet, and no word that a connection has ended."""
        _ip("link", "set", self._link, "down")

    def heal(self) -> None:
        """Let everything through again."""
        _ip("link", "set", self._link, "up")

    def close(self) -> None:
        """Remove it, with its link."""
        for command in (["link", "delete", self._link], ["netns", "delete", self._name]):
            subprocess.run(["ip", *command], check=False, capture_output=True)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


def clock_shifter(folder: Path) -> Path:
    """Compile the library that, preloaded, shifts a process's clock by ``CLOCK_SHIFT_S`` seconds."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        unable("a C compiler is missing: apt-get install gcc libc6-dev")
    source, library = folder / "shift.c", folder / "shift.so"
    source.write_text(SHIFT_SOURCE)
    subprocess.run([str(compiler), "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    return library
