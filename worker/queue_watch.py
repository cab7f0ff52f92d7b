"""Looks how long the model's queue is: messages that wait while none is taken mean that the consumer is deaf."""

import threading
from collections.abc import Callable

from worker.vitals import Vitals

#: Seconds between looks: a connection and a command each, beside minutes that a stall takes to count.
LOOK_S = 2.0


class QueueWatch:
    """Keeps looking how many messages wait, over a connection of its own: the consumer's may be the one in trouble."""

    def __init__(self, count: Callable[[], int], vitals: Vitals) -> None:
        """:param count: asks the broker."""
        self._count = count
        self._vitals = vitals
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="queue-watch", daemon=True)

    def start(self) -> None:
        """Begin to look. In a thread of its own, because a broker that is away takes seconds to say so."""
        self._thread.start()

    def stop(self) -> None:
        """Look no more."""
        self._closed.set()

    def _watch(self) -> None:
        while not self._closed.wait(LOOK_S):
            try:
                length = self._count()
            except Exception:  # the broker's client has many; the consumer says what is wrong
                self._vitals.see_queue(None)
            else:
                self._vitals.see_queue(length)
