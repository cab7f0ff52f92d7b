"""An event loop on a thread of its own, for engines that are asynchronous inside and called from any thread."""

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """Runs coroutines for other threads."""

    def __init__(self, name: str) -> None:
        self._loop: asyncio.AbstractEventLoop
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._loop = asyncio.new_event_loop()
        self._thread.start()

    def _serve(self) -> None:
        # The runner cancels what is left at the end, and closes the loop.
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._until_stopped())

    async def _until_stopped(self) -> None:
        await self._stop.wait()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine. Cancelling the future cancels it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Run a coroutine and wait for it. Not from the loop's own thread."""
        return self.submit(work).result(timeout)

    def close(self, timeout: float) -> None:
        """Cancel what still runs, and stop. Safe to call twice, and if never started."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(timeout)
