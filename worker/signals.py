"""The signals that end a worker: the first stops it in order, the second at once."""

import signal
import socket
import threading
from collections.abc import Callable
from typing import Any

#: A shell's code for a process that a signal ended is this and the signal's number.
SIGNALLED = 128

#: The first of these stops the worker, the next ends it.
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
#: Ends it at once, as it does other programs.
_ABORT_SIGNAL = signal.SIGQUIT


def listen_for_signals(stop: Callable[[], None], abort: Callable[[signal.Signals], None]) -> None:
    """Take the signals that end a worker over from Celery, whose second SIGTERM is no more than its first.

    They are read by a thread, from the descriptor that Python's own handler writes to: the main thread may be held up
    by whatever the second signal is to end. Called in the main thread, after Celery has set its handlers.

    :param stop: called at the first SIGTERM or SIGINT, from that thread.
    :param abort: called at the second, or at SIGQUIT.
    """
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    for signum in (*_STOP_SIGNALS, _ABORT_SIGNAL):
        signal.signal(signum, _leave_it_to_the_thread)
    signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)

    def listen(_: socket.socket) -> None:
        told = False
        while numbers := reader.recv(16):
            for number in numbers:
                if number == _ABORT_SIGNAL or (told and number in _STOP_SIGNALS):
                    abort(signal.Signals(number))
                elif number in _STOP_SIGNALS:
                    told = True
                    stop()

    threading.Thread(target=listen, args=(writer,), name="signals", daemon=True).start()


def _leave_it_to_the_thread(*_: Any) -> None:
    """A handler, so that the signal does nothing else."""
