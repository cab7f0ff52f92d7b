"""Who is at the engine: many chunks together, or one quarantined chunk alone."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

#: Seconds between looks at what ends the wait without the gate's doing, such as a shutdown.
LOOK_S = 0.2


class Gate:
    """Chunks come in together; one that must be alone waits until the gate is empty, and later ones wait for it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._alone = False
        self._waiting_alone = 0

    @contextmanager
    def together(self, look: Callable[[], None]) -> Iterator[None]:
        """Be inside with others.

        :param look: called before coming in, and while waiting; raises to stay out.
        """
        self._come_in(lambda: not self._alone and not self._waiting_alone, look)
        try:
            yield
        finally:
            self._leave()

    @contextmanager
    def alone(self, look: Callable[[], None]) -> Iterator[None]:
        """Be inside with nobody else. ``look`` as above."""
        with self._changed:
            self._waiting_alone += 1
        try:
            self._come_in(lambda: not self._inside, look, alone=True)
        finally:
            with self._changed:
                self._waiting_alone -= 1
                self._changed.notify_all()
        try:
            yield
        finally:
            self._leave()

    def _come_in(self, ready: Callable[[], bool], look: Callable[[], None], *, alone: bool = False) -> None:
        while True:
            look()  # not under the lock: it may take its time
            with self._changed:
                if self._changed.wait_for(ready, LOOK_S):
                    self._inside += 1
                    self._alone = alone
                    return

    def _leave(self) -> None:
        with self._changed:
            self._inside -= 1
            self._alone = False
            self._changed.notify_all()
