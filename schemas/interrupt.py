"""Ctrl-C while a program is still being imported."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_traceback() -> Iterator[None]:
    """While it lasts SIGINT ends the process at once: there is nothing to leave in order yet, and a traceback of
    imports would look like a fault. A SIGINT that is ignored, as in a shell's background, stays so."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGINT, signal.default_int_handler)
