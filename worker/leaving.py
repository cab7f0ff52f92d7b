"""How a worker is told to leave, and how it leaves when it can't wait."""

import logging
import os
import signal
import socket
import threading
from collections.abc import Callable
from typing import Any

from worker.family import kill_descendants

logger = logging.getLogger(__name__)

#: Seconds for the last word to the log and to Postgres: a healthy server takes milliseconds, and who asks twice
#: does not wait.
LAST_WORD_S = 1.0
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


def leave_at_once(exit_code: int, words: str, free: Callable[[], None]) -> None:
    """End this process within :data:`LAST_WORD_S` and a little, with all that it started. Does not return.

    :param words: for the log.
    :param free: gives the leases back; not waited for any longer than that.
    """

    def last_word() -> None:
        logger.critical(words)
        try:
            free()
        except Exception as error:  # whatever it is: there is no later
            logger.error("chunks were not given back, their leases run out: %s", error)

    try:
        # Apart: Postgres may be silent, and the log may be a pipe that nobody reads.
        thread = threading.Thread(target=last_word, name="last-word", daemon=True)
        thread.start()
        thread.join(LAST_WORD_S)
        # An engine's core would stay, with the GPU's memory.
        kill_descendants()
    finally:
        os._exit(exit_code)
