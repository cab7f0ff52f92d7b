"""An engine elsewhere: any server with an OpenAI-compatible API (vLLM, SGLang, TensorRT-LLM, TGI, llama.cpp, Ollama).

The server applies the chat template and tokenizes, so two promises of a resident engine are kept differently:

- Control tokens: text such as ``<|im_end|>`` in a document may become one on the server. Such documents are rejected,
  unless ``GLEANER_OPENAI_CONTROL_TOKENS=keep`` says that this server does no harm with them. They are never changed.
- Sizes: a prompt that is surely small is not counted; a larger one is, where the server offers vLLM's ``/tokenize``,
  and else estimated. Rows get the server's own figures.

White space between JSON tokens is the server's to forbid (vLLM: ``--structured-outputs-config``): models have looped
in it until the limit.
"""

import asyncio
import contextlib
import json
import logging
import random
import re
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from email.utils import mktime_tz, parsedate_tz
from functools import lru_cache
from typing import Any

from openai import APIConnectionError, APIStatusError
from openai.types.chat import ChatCompletion
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, stop_after_attempt

from schemas.errors import EngineUnavailable
from schemas.outcomes import EngineLost, Outcome, Reason, RequestFailed, RowFinal
from schemas.settings import Settings
from worker.engine.base import EngineInfo, Generation, Prompt, Request
from worker.engine.loop import LoopThread
from worker.engine.server import Server, cause, transient

#: Text that the tokenizer of a common model takes for a control token: ChatML, Llama, Mistral, Gemma, DeepSeek.
CONTROL_TOKEN = re.compile(r"<[|｜][^|｜<>]{1,64}[|｜]>|\[/?INST\]|</?s>|<(?:start|end)_of_turn>")
#: Bytes of UTF-8 that a token covers, where the server does not count: English has four to five, other languages on
#: an English tokenizer about two. Where even that is too many, the server refuses the prompt and the row says so.
BYTES_PER_TOKEN = 2
#: Tokens that a chat template may add around the turns: Llama 3's, with its dates, adds about 40.
TEMPLATE_TOKENS = 64

#: Requests for one try of a row that meet trouble of the server's: half a minute with the pauses between.
REQUESTS_A_TRY = 6
#: Seconds before the second request at most; doubled with each further one.
BACKOFF_S = 1.0
MAX_BACKOFF_S = 30.0
#: Seconds of ``Retry-After`` that are waited: a slot is taken meanwhile.
MAX_RETRY_AFTER_S = 60.0
#: Seconds until close gives up on connections.
CLOSE_TIMEOUT_S = 10.0

#: Fields of a message that hold a model's thoughts: vLLM's since 0.11.2, and its older name, which llama.cpp has too.
THOUGHTS = ("reasoning", "reasoning_content")
#: Statuses that are our input's fault: the same prompt would be refused again.
_INPUT = {400, 413, 422}


class OpenaiEngine:
    """See :class:`worker.engine.base.Engine`."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._loop = LoopThread("openai-loop")
        self._server: Server
        self._opened = False
        self._system_turns = True
        self._gate = asyncio.Semaphore(settings.openai_concurrency)
        self._in_flight: set[asyncio.Task[Any] | None] = set()
        self._closed = False

    def start(self) -> None:
        for name in ("httpx", "httpx2"):  # the client's transport logs a line a request
            logging.getLogger(name).setLevel(logging.WARNING)
        self._server = Server(self._settings)
        self._opened = True
        self._server.on_lost = self._cancel_all
        self._loop.start()
        self._loop.run(self._open())

    async def _open(self) -> None:
        await self._server.open()
        try:
            await self._try_turns()
        except (EngineLost, RequestFailed, RowFinal) as error:
            raise EngineUnavailable(f"{self._server.address} lists the model but labels nothing: {error}") from error

    async def _try_turns(self) -> None:
        """One token of output, so that a chat template without a system turn (Gemma's) refuses no whole job."""
        try:
            await self._complete(_probe(self._messages("Say hello.", "Hello.")))
        except RowFinal:
            self._system_turns = False
            await self._complete(_probe(self._messages("Say hello.", "Hello.")))

    @property
    def info(self) -> EngineInfo:
        return EngineInfo(
            engine="openai",
            version=self._server.version,
            model=self._settings.model,
            model_path=self._server.model,
            revision=self._settings.model_revision,
            max_model_len=self._server.max_model_len,
            max_num_seqs=self._settings.openai_concurrency,
            structured_backend="response_format",
            arguments={"base_url": self._server.address, "extra_body": self._server.extra_body},
        )

    def encode(self, system_prompt: str, user_texts: Sequence[str]) -> list[Prompt]:
        return self._loop.run(self._encode([self._messages(system_prompt, text) for text in user_texts]))

    def _messages(self, system_prompt: str, user_text: str) -> list[dict[str, str]]:
        if not system_prompt:
            return [{"role": "user", "content": user_text}]
        if not self._system_turns:
            return [{"role": "user", "content": f"{system_prompt}\n\n{user_text}"}]
        return [{"role": "system", "content": system_prompt}, {"role": "user", "content": user_text}]

    async def _encode(self, chats: Sequence[Sequence[Mapping[str, str]]]) -> list[Prompt]:
        sizes = await asyncio.gather(*(self._size(messages) for messages in chats))
        return [Prompt(size, messages=messages) for size, messages in zip(sizes, chats, strict=True)]

    async def _size(self, messages: Sequence[Mapping[str, str]]) -> int:
        text = "".join(message["content"] for message in messages)
        if self._server.counts:
            # No tokenizer in use makes more tokens than bytes: with half the context left, the number does not matter.
            most = _bytes(text) + TEMPLATE_TOKENS
            if most <= self._server.max_model_len // 2:
                return most
            count = await self._server.count(messages=messages)
            if count is not None:
                return count
        return _estimate(text) + TEMPLATE_TOKENS

    def offsets(self, text: str) -> list[int]:
        count = _estimate(text)
        if self._server.counts:
            count = self._loop.run(self._server.count(prompt=text, add_special_tokens=False)) or count
        # Evenly: the server does not say where its tokens start.
        return [number * len(text) // count for number in range(count)]

    def submit(self, request: Request) -> Future[Generation]:
        return self._loop.submit(self.generate(request))

    async def generate(self, request: Request) -> Generation:
        """:meth:`submit` for those who are on the engine's loop already."""
        if self._settings.openai_control_tokens == "reject":
            _refuse_control_tokens(request.prompt)
        task = asyncio.current_task()
        self._in_flight.add(task)
        try:
            async with self._gate:
                return _generation(request.prompt, await self._complete(request))
        except asyncio.CancelledError:
            if self._server.lost is not None:
                raise EngineLost(self._server.lost) from None
            raise
        finally:
            self._in_flight.discard(task)

    async def _complete(self, request: Request) -> ChatCompletion:
        # A slot is kept during the pauses: a server that is too busy gets less to do.
        retrying = AsyncRetrying(
            retry=retry_if_exception_type(RequestFailed),
            wait=_pause,
            stop=stop_after_attempt(REQUESTS_A_TRY),
            reraise=True,
        )
        try:
            return await retrying(self._ask, request)
        except _NotServed as error:
            if await self._serves_others():
                # A filter on the way that refuses this text: the next worker would meet it too.
                reason = f"the server refuses this prompt and serves others: {error.__cause__}"
                raise RowFinal(Outcome.REJECTED, Reason.REFUSED, reason) from None
            self._server.lose(str(error))
            raise EngineLost(str(error)) from error

    async def _serves_others(self) -> bool:
        try:
            await self._ask(_probe([{"role": "user", "content": "Say hello."}]))
        except (RequestFailed, RowFinal, EngineLost):
            return False
        return True

    async def _ask(self, request: Request) -> ChatCompletion:
        server = self._server
        if server.lost is not None:
            raise EngineLost(server.lost)
        try:
            completion: Any = await server.client.chat.completions.create(
                model=server.model,
                messages=list(request.prompt.messages),  # type: ignore[arg-type]
                max_tokens=request.max_tokens,
                temperature=request.temperature,
                top_p=request.top_p,
                seed=request.seed,
                extra_body=server.extra_body,
                **_response_format(request.schema_text),
            )
        except APIConnectionError as error:
            await server.wait()
            raise RequestFailed(f"no answer from the server: {cause(error)}") from error
        except APIStatusError as error:
            if error.status_code in _INPUT:
                raise RowFinal(Outcome.REJECTED, Reason.REFUSED, f"the server refused the prompt: {error}") from None
            if transient(error):
                raise RequestFailed(str(error)) from error
            # The key, the model or the address: no row's fault, and every row would meet it.
            await server.wait()
            raise _NotServed(f"the server refuses every request: {error}") from error
        except Exception as error:
            raise RequestFailed(f"no proper answer: {cause(error)}") from error
        if not isinstance(completion, ChatCompletion) or not completion.choices:
            raise RequestFailed("the server's answer is no completion")
        return completion

    def _cancel_all(self) -> None:
        for task in self._in_flight - {asyncio.current_task()}:
            assert task is not None
            task.cancel()

    @property
    def lost(self) -> bool:
        return self._opened and self._server.lost is not None

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._opened:
            with contextlib.suppress(TimeoutError):
                self._loop.run(self._server.client.close(), timeout=CLOSE_TIMEOUT_S)
        self._loop.close(CLOSE_TIMEOUT_S)


class _NotServed(RequestFailed):
    """What no request will get from this server as it is set up."""


def _probe(messages: Sequence[Mapping[str, str]]) -> Request:
    return Request(Prompt(0, messages=messages), None, max_tokens=1, temperature=0, top_p=1, seed=0)


def _pause(state: RetryCallState) -> float:
    """Seconds until the next request: what the server asked for, else doubled each time; never all rows at once."""
    error = state.outcome.exception() if state.outcome else None
    asked = _retry_after(error.__cause__ if error else None)
    if asked is not None:
        return asked + random.uniform(0, BACKOFF_S)
    return random.uniform(0, min(BACKOFF_S * 2.0 ** (state.attempt_number - 1), MAX_BACKOFF_S))


def _retry_after(error: BaseException | None) -> float | None:
    text = error.response.headers.get("retry-after") if isinstance(error, APIStatusError) else None
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        date = parsedate_tz(text)
        if date is None:
            return None
        seconds = mktime_tz(date) - time.time()
    return min(max(seconds, 0.0), MAX_RETRY_AFTER_S)


def _refuse_control_tokens(prompt: Prompt) -> None:
    found = CONTROL_TOKEN.search(prompt.messages[-1]["content"])
    if found:
        raise RowFinal(
            Outcome.REJECTED,
            Reason.REFUSED,
            f"the document holds {found[0]!r}, which the server may take for a control token "
            "(GLEANER_OPENAI_CONTROL_TOKENS=keep sends it all the same)",
        )


@lru_cache(maxsize=64)
def _response_format(schema_text: str | None) -> dict[str, Any]:
    if schema_text is None:
        return {}
    schema = json.loads(schema_text)
    return {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "label", "schema": schema, "strict": True},
        }
    }


def _generation(prompt: Prompt, completion: ChatCompletion) -> Generation:
    choice = completion.choices[0]
    if choice.message.refusal:
        raise RowFinal(Outcome.INVALID, Reason.REFUSED, f"the model refused: {choice.message.refusal}")
    if choice.finish_reason not in ("stop", "length"):
        raise RequestFailed(f"the server ended the request: {choice.finish_reason}")
    text = choice.message.content or ""
    fields = choice.message.model_extra or {}
    thoughts = next((said for name in THOUGHTS if isinstance(said := fields.get(name), str)), "")
    usage = completion.usage
    details = usage.prompt_tokens_details if usage else None
    return Generation(
        text=text,
        finish_reason=choice.finish_reason,
        prompt_tokens=usage.prompt_tokens if usage else prompt.size,
        output_tokens=usage.completion_tokens if usage else _estimate(thoughts + text),
        cached_tokens=(details.cached_tokens if details else None) or 0,
        thoughts=thoughts,
    )


def _bytes(text: str) -> int:
    return len(text.encode("utf-8", "replace"))


def _estimate(text: str) -> int:
    """Tokens of a text."""
    return -(-_bytes(text) // BYTES_PER_TOKEN)
