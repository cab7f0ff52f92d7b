"""An engine that answers from the schema alone: for tests, and for measuring everything that is not the model."""

import os
import queue
import signal
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future

from schemas.outcomes import EngineLost
from schemas.settings import Settings
from worker.engine.base import EngineInfo, Generation, Prompt, Request
from worker.engine.plain_label import plain_label_text

#: Characters a token of English text has on average: the stub has no tokenizer.
CHARS_PER_TOKEN = 4
#: Context length when no setting says one: that of a common small model.
DEFAULT_MAX_MODEL_LEN = 8192
#: The content of a prompt that takes the engine down.
_POISONED = (0,)


class StubEngine:
    """See :class:`worker.engine.base.Engine`. Its prompts have a size and, but for poison, no content."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._waiting: queue.SimpleQueue[tuple[Request, Future[Generation]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="stub-engine", daemon=True)
        self._closed = False
        self._served = 0
        self._lost = threading.Event()

    def start(self) -> None:
        self._thread.start()

    @property
    def info(self) -> EngineInfo:
        return EngineInfo(
            engine="stub",
            version="1",
            model=self._settings.model,
            model_path="",
            revision=None,
            max_model_len=self._settings.max_model_len or DEFAULT_MAX_MODEL_LEN,
            max_num_seqs=self._settings.max_num_seqs or 256,
            structured_backend="none",
            arguments={"rows_per_s": self._settings.stub_rows_per_s},
        )

    def encode(self, system_prompt: str, user_texts: Sequence[str]) -> list[Prompt]:
        poison = self._settings.stub_poison
        return [
            Prompt(
                (len(system_prompt) + len(text)) // CHARS_PER_TOKEN + 1,
                tokens=_POISONED if poison is not None and poison in text else (),
            )
            for text in user_texts
        ]

    def offsets(self, text: str) -> list[int]:
        return list(range(0, len(text), CHARS_PER_TOKEN))

    def submit(self, request: Request) -> Future[Generation]:
        future: Future[Generation] = Future()
        self._waiting.put((request, future))
        return future

    def _serve(self) -> None:
        pause = 1 / self._settings.stub_rows_per_s if self._settings.stub_rows_per_s else 0.0
        while (item := self._waiting.get()) is not None:
            request, future = item
            if not future.set_running_or_notify_cancel():
                continue
            if self._lost.is_set():
                future.set_exception(EngineLost("the stub engine is gone"))
                continue
            if pause:
                time.sleep(pause)
            if request.prompt.tokens == _POISONED:
                self._die(future)
                continue
            text = "stub" if request.schema_text is None else plain_label_text(request.schema_text)
            future.set_result(
                Generation(
                    text=text,
                    finish_reason="stop",
                    prompt_tokens=request.prompt.size,
                    output_tokens=len(text) // CHARS_PER_TOKEN + 1,
                    cached_tokens=0,
                )
            )
            self._served += 1
            if self._served == self._settings.stub_dies_after_rows:
                self._lost.set()
            if self._served == self._settings.stub_hangs_after_rows:
                return

    def _die(self, future: Future[Generation]) -> None:
        if self._settings.stub_poison_kills == "process":
            os.kill(os.getpid(), signal.SIGKILL)
        self._lost.set()
        future.set_exception(EngineLost("the stub engine is gone"))

    @property
    def lost(self) -> bool:
        return self._lost.is_set()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._waiting.put(None)
