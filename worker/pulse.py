"""An engine whose requests are counted, so that one that has stopped answering is told from one with nothing to do."""

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future

from worker.engine.base import Engine, EngineInfo, Generation, Prompt, Request


class PulsedEngine:
    """See :class:`worker.engine.base.Engine`; what it wraps does the work."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._open = 0
        self._answered_at = time.monotonic()
        self._given_up = threading.Event()

    @property
    def open_requests(self) -> int:
        """Requests without an answer."""
        return self._open

    @property
    def silent_s(self) -> float:
        """Seconds without an answer while requests wait for one; 0 while none waits."""
        with self._lock:
            return time.monotonic() - self._answered_at if self._open else 0.0

    @property
    def answered_at(self) -> float:
        """When the last answer came, or the first request after a time without any; by ``time.monotonic()``."""
        return self._answered_at

    def give_up(self) -> None:
        """Count the engine as lost from now on."""
        self._given_up.set()

    def start(self) -> None:
        self._engine.start()

    @property
    def info(self) -> EngineInfo:
        return self._engine.info

    def encode(self, system_prompt: str, user_texts: Sequence[str]) -> list[Prompt]:
        return self._engine.encode(system_prompt, user_texts)

    def offsets(self, text: str) -> list[int]:
        return self._engine.offsets(text)

    def submit(self, request: Request) -> Future[Generation]:
        with self._lock:
            if not self._open:
                self._answered_at = time.monotonic()
            self._open += 1
        try:
            future = self._engine.submit(request)
        except BaseException:
            self._answered()
            raise
        future.add_done_callback(lambda _: self._answered())
        return future

    def _answered(self) -> None:
        with self._lock:
            self._open -= 1
            self._answered_at = time.monotonic()

    @property
    def lost(self) -> bool:
        return self._given_up.is_set() or self._engine.lost

    def close(self) -> None:
        self._engine.close()
