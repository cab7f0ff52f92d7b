"""An engine whose answers a test brings."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from threading import Lock

from worker.engine.base import EngineInfo, Generation, Prompt, Request

#: What to do with a request: text for a ``stop``, a generation, or an error to raise.
Answer = str | Generation | Exception


def generation(text: str, finish_reason: str = "stop") -> Generation:
    return Generation(text, finish_reason, prompt_tokens=10, output_tokens=20, cached_tokens=5)


class AnsweringEngine:
    """See :class:`worker.engine.base.Engine`. ``answer`` is called in the thread that submits."""

    def __init__(self, answer: Callable[[Request], Answer | None], *, max_model_len: int = 8192) -> None:
        """:param answer: None leaves the request unanswered."""
        self.requests: list[Request] = []
        self.futures: list[Future[Generation]] = []
        self.lost = False
        self.info = EngineInfo("answering", "1", "m", "", None, max_model_len, 4, "none")
        self._answer = answer
        self._lock = Lock()

    def start(self) -> None: ...

    def close(self) -> None: ...

    def encode(self, system_prompt: str, user_texts: Sequence[str]) -> list[Prompt]:
        return [Prompt(len(system_prompt) + len(text)) for text in user_texts]

    def offsets(self, text: str) -> list[int]:
        return list(range(len(text)))

    def submit(self, request: Request) -> Future[Generation]:
        future: Future[Generation] = Future()
        with self._lock:
            self.requests.append(request)
            self.futures.append(future)
        answer = self._answer(request)
        if isinstance(answer, Exception):
            future.set_exception(answer)
        elif answer is not None:
            future.set_result(generation(answer) if isinstance(answer, str) else answer)
        return future
