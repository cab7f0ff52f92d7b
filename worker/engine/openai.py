"""An engine elsewhere: any server with an OpenAI-compatible API (vLLM, SGLang, TensorRT-LLM, TGI, llama.cpp, Ollama).

The server applies the chat template and tokenizes, so two promises of a resident engine are kept differently:

- Control tokens: text such as ``<|im_end|>`` in a document may become one on the server. Such documents are rejected,
  unless ``GLEANER_OPENAI_CONTROL_TOKENS=keep`` says that this server does no harm with them. They are never changed.
- Sizes: a prompt that is surely small is not counted, a larger one is where the server offers vLLM's ``/tokenize``,
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
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from email.utils import mktime_tz, parsedate_tz
from functools import lru_cache
from typing import Any
from urllib.parse import SplitResult, urlsplit

from openai import APIConnectionError, APIStatusError, AsyncOpenAI, OpenAIError, Timeout
from openai.types.chat import ChatCompletion
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception,
    retry_if_exception_type,
    stop_after_attempt,
    stop_after_delay,
)

from schemas.errors import EngineUnavailable
from schemas.outcomes import EngineLost, Outcome, Reason, RequestFailed, RowFinal
from schemas.settings import Settings
from worker.engine.base import EngineInfo, Generation, Prompt, Request
from worker.engine.loop import LoopThread

logger = logging.getLogger(__name__)

#: Text that the tokenizer of a common model takes for a control token: ChatML, Llama, Mistral, Gemma, DeepSeek.
CONTROL_TOKEN = re.compile(r"<[|｜][^|｜<>]{1,64}[|｜]>|\[/?INST\]|</?s>|<(?:start|end)_of_turn>")
#: Bytes of UTF-8 that a token covers, where the server does not count: English has four to five, other languages on
#: an English tokenizer about two. Where even that is too many, the server refuses the prompt and the row says so.
BYTES_PER_TOKEN = 2
#: Tokens that a chat template may add around the turns: Llama 3's, with its dates, adds about 40.
TEMPLATE_TOKENS = 64

#: Requests for one try of a row that meet trouble of the server's: about a minute with the pauses between.
TRIES = 6
#: Seconds before the second request at most; doubled with each further one.
BACKOFF_S = 1.0
MAX_BACKOFF_S = 30.0
#: Seconds of ``Retry-After`` that are waited; a server that asks for more fails the request.
MAX_RETRY_AFTER_S = 60.0
#: Seconds for a connection, and for an answer that costs the server nothing.
CONNECT_TIMEOUT_S = 5.0
LOOK_TIMEOUT_S = 10.0
#: Documents counted at once: beside the labelling, not instead of it.
COUNTING = 16
#: Seconds until close gives up on connections.
CLOSE_TIMEOUT_S = 10.0

#: Statuses that are our input's fault: the same prompt would be refused again.
_INPUT = {400, 413, 422}
#: Statuses that pass, beside all from 500 up.
_PASSING = {408, 409, 425, 429}
#: ``owned_by`` of servers that hand ``chat_template_kwargs`` to the template; others refuse the unknown field.
_WITH_TEMPLATE_KWARGS = {"vllm", "sglang"}


class OpenaiEngine:
    """See :class:`worker.engine.base.Engine`."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._model = settings.model_path or settings.model
        self._loop = LoopThread("openai-loop")
        self._client: AsyncOpenAI | None = None
        self._info: EngineInfo
        self._root = ""  #: address of what lies beside /v1
        self._counts = False  #: whether the server counts tokens
        self._extra_body: dict[str, Any] = {}
        self._gate = asyncio.Semaphore(settings.openai_concurrency)
        self._count_gate = asyncio.Semaphore(COUNTING)
        self._in_flight: set[asyncio.Task[Any] | None] = set()
        self._search: asyncio.Task[None] | None = None
        self._lost: str | None = None
        self._closed = False

    def start(self) -> None:
        url = _checked_url(self._settings)
        self._root = url.geturl().rstrip("/").removesuffix("/v1")
        for name in ("httpx", "httpx2"):  # the client's transport logs a line a request
            logging.getLogger(name).setLevel(logging.WARNING)
        self._loop.start()
        self._loop.run(self._open(url))

    async def _open(self, url: SplitResult) -> None:
        settings = self._settings
        key = settings.openai_api_key
        self._client = AsyncOpenAI(
            base_url=url.geturl(),
            api_key=(key.get_secret_value() if key else "") or "none",
            # Ours know which failure is a row's and which the server's.
            max_retries=0,
            timeout=Timeout(settings.openai_timeout_s, connect=CONNECT_TIMEOUT_S),
        )
        address = url._replace(netloc=url.netloc.rpartition("@")[2]).geturl()
        try:
            served = await self._find(_passes)
        except Exception as error:
            raise EngineUnavailable(_remedy(address, error, settings.openai_lost_after_s)) from error
        server = str(served.get("owned_by") or "unknown")
        if settings.chat_template_kwargs and server in _WITH_TEMPLATE_KWARGS:
            self._extra_body["chat_template_kwargs"] = settings.chat_template_kwargs
        self._extra_body |= settings.openai_extra_body
        version = await self._beside("GET", "/version")
        self._counts = await self._count(messages=[{"role": "user", "content": "a"}]) is not None
        self._info = EngineInfo(
            engine="openai",
            version=f"{server} {version['version']}" if "version" in version else server,
            model=settings.model,
            model_path=self._model,
            revision=settings.model_revision,
            max_model_len=_max_model_len(served, settings),
            max_num_seqs=settings.openai_concurrency,
            structured_backend="response_format",
            arguments={"base_url": address, **self._extra_body},
        )

    async def _find(self, passes: Callable[[BaseException], bool]) -> dict[str, Any]:
        """What the server says of the model; asked until it answers or has been away for too long."""
        retrying = AsyncRetrying(
            retry=retry_if_exception(passes),
            wait=_pause,
            stop=stop_after_delay(self._settings.openai_lost_after_s),
            before_sleep=lambda state: logger.warning("waiting for the server: %s", state.outcome.exception()),  # type: ignore[union-attr]
            reraise=True,
        )
        return await retrying(self._look)

    async def _look(self) -> dict[str, Any]:
        assert self._client is not None
        answer: Any = await self._client.get("/models", cast_to=object, options={"timeout": LOOK_TIMEOUT_S})
        try:
            served = {str(model["id"]): dict(model) for model in answer["data"]}
        except (LookupError, TypeError, ValueError):
            raise EngineUnavailable("the server's /models is no list of models: is it an OpenAI-compatible API?") from None
        if self._model not in served:
            raise EngineUnavailable(
                f"the server does not serve {self._model!r} but {', '.join(sorted(served)) or 'nothing'}: set "
                "GLEANER_MODEL, or GLEANER_MODEL_PATH where the server's name for it is another"
            )
        return served[self._model]

    async def _beside(self, method: str, path: str, **body: Any) -> dict[str, Any]:
        """What the server answers outside /v1; nothing where it has no such page or is in trouble."""
        assert self._client is not None
        options: Any = {"timeout": LOOK_TIMEOUT_S}
        try:
            if method == "GET":
                answer: Any = await self._client.get(self._root + path, cast_to=object, options=options)
            else:
                answer = await self._client.post(self._root + path, cast_to=object, body=body, options=options)
        except (OpenAIError, ValueError):
            return {}
        return answer if isinstance(answer, dict) else {}

    async def _count(self, **what: Any) -> int | None:
        """Tokens by vLLM's ``/tokenize``; None where that is not to be had."""
        kwargs = self._extra_body.get("chat_template_kwargs")
        if kwargs and "messages" in what:
            what["chat_template_kwargs"] = kwargs
        async with self._count_gate:
            answer = await self._beside("POST", "/tokenize", model=self._model, **what)
        count = answer.get("count")
        return count if isinstance(count, int) else None

    @property
    def info(self) -> EngineInfo:
        return self._info

    def encode(self, system_prompt: str, user_texts: Sequence[str]) -> list[Prompt]:
        system = [{"role": "system", "content": system_prompt}] if system_prompt else []
        return self._loop.run(self._encode([[*system, {"role": "user", "content": text}] for text in user_texts]))

    async def _encode(self, chats: Sequence[Sequence[Mapping[str, str]]]) -> list[Prompt]:
        sizes = await asyncio.gather(*(self._size(messages) for messages in chats))
        return [Prompt(size, messages=messages) for size, messages in zip(sizes, chats, strict=True)]

    async def _size(self, messages: Sequence[Mapping[str, str]]) -> int:
        text = "".join(message["content"] for message in messages)
        if self._counts:
            # No tokenizer in use makes more tokens than bytes: with half the context left, the number does not matter.
            most = _bytes(text) + TEMPLATE_TOKENS
            if most <= self._info.max_model_len // 2:
                return most
            count = await self._count(messages=messages)
            if count is not None:
                return count
        return _estimate(text) + TEMPLATE_TOKENS

    def offsets(self, text: str) -> list[int]:
        count = self._loop.run(self._count(prompt=text, add_special_tokens=False)) if self._counts else None
        count = count or _estimate(text)
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
            if self._lost is not None:
                raise EngineLost(self._lost) from None
            raise
        finally:
            self._in_flight.discard(task)

    async def _complete(self, request: Request) -> ChatCompletion:
        # A slot is kept during the pauses: a server that is too busy gets less to do.
        retrying = AsyncRetrying(
            retry=retry_if_exception_type(RequestFailed), wait=_pause, stop=stop_after_attempt(TRIES), reraise=True
        )
        try:
            return await retrying(self._ask, request)
        except _NotServed as error:
            self._lose(str(error))
            raise EngineLost(str(error)) from error

    async def _ask(self, request: Request) -> ChatCompletion:
        if self._lost is not None:
            raise EngineLost(self._lost)
        assert self._client is not None
        format_ = {} if request.schema_text is None else {"response_format": _response_format(request.schema_text)}
        try:
            completion: Any = await self._client.chat.completions.create(
                model=self._model,
                messages=list(request.prompt.messages),  # type: ignore[arg-type]
                max_tokens=request.max_tokens,
                temperature=request.temperature,
                top_p=request.top_p,
                seed=request.seed,
                extra_body=self._extra_body,
                **format_,
            )
        except APIConnectionError as error:
            await self._wait_for_server()
            raise RequestFailed(f"no answer from the server: {_cause(error)}") from error
        except APIStatusError as error:
            status = error.status_code
            if status in _INPUT:
                raise RowFinal(Outcome.REJECTED, Reason.REFUSED, f"the server refused the prompt: {error}") from None
            if status in _PASSING or status >= 500:
                raise RequestFailed(str(error)) from error
            # The key, the model or the address: no row's fault, and every row would meet it.
            await self._wait_for_server()
            raise _NotServed(f"the server refuses every request: {error}") from error
        except Exception as error:
            raise RequestFailed(f"no proper answer: {_cause(error)}") from error
        if not isinstance(completion, ChatCompletion) or not completion.choices:
            raise RequestFailed("the server's answer is no completion")
        return completion

    async def _wait_for_server(self) -> None:
        """Return when the server answers and serves the model, or is lost. One asks for all that wait."""
        if self._search is None or self._search.done():
            self._search = asyncio.create_task(self._search_server())
        await asyncio.shield(self._search)

    async def _search_server(self) -> None:
        try:
            await self._find(lambda _: True)
        except Exception as error:
            self._lose(f"the server was away for {self._settings.openai_lost_after_s:g} s: {_cause(error)}")

    def _lose(self, reason: str) -> None:
        self._lost = reason
        for task in self._in_flight - {asyncio.current_task()}:
            assert task is not None
            task.cancel()

    @property
    def lost(self) -> bool:
        return self._lost is not None

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._client is not None:
            with contextlib.suppress(TimeoutError):
                self._loop.run(self._client.close(), timeout=CLOSE_TIMEOUT_S)
        self._loop.close(CLOSE_TIMEOUT_S)


class _NotServed(RequestFailed):
    """What no request will get from this server as it is set up."""


def _checked_url(settings: Settings) -> SplitResult:
    secret = settings.openai_base_url
    url = urlsplit(secret.get_secret_value() if secret else "")
    try:
        usable = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:  # a port that is no number
        usable = False
    if not usable:
        raise EngineUnavailable(
            "GLEANER_OPENAI_BASE_URL must be the address of an OpenAI-compatible API, as http://127.0.0.1:8000/v1"
        )
    return url


def _max_model_len(served: Mapping[str, Any], settings: Settings) -> int:
    said = served.get("max_model_len")
    limits = [limit for limit in (said, settings.max_model_len) if isinstance(limit, int)]
    if not limits:
        raise EngineUnavailable(
            "the server does not say how long the model's context is: set GLEANER_MAX_MODEL_LEN to the tokens of "
            "prompt and output together that it was started with"
        )
    return min(limits)


def _passes(error: BaseException) -> bool:
    """Whether waiting can help at start: a server that loads its model, not a wrong address, key or model."""
    if isinstance(error, APIStatusError):
        return error.status_code in _PASSING or error.status_code >= 500
    return isinstance(error, APIConnectionError) and not isinstance(_root_cause(error), ssl.SSLError)


def _remedy(address: str, error: Exception, waited_s: float) -> str:
    if isinstance(error, EngineUnavailable):
        return f"{address}: {error}"
    if isinstance(error, APIStatusError):
        if error.status_code in (401, 403):
            return f"{address} refuses the key (HTTP {error.status_code}): set GLEANER_OPENAI_API_KEY"
        return f"{address}/models answers HTTP {error.status_code}: set GLEANER_OPENAI_BASE_URL; most end in /v1"
    if isinstance(_root_cause(error), ssl.SSLError):
        return (
            f"no TLS with {address}: {_cause(error)}. Is it http? For a certificate of your own, set SSL_CERT_FILE "
            "to its authority's"
        )
    return f"no answer from {address} in {waited_s:g} s: {_cause(error)}. Start the server or set GLEANER_OPENAI_BASE_URL"


def _pause(state: RetryCallState) -> float:
    """Seconds until the next request: what the server asked for, else doubled each time; never all rows at once."""
    error = state.outcome.exception() if state.outcome else None
    asked = _retry_after(error if isinstance(error, APIStatusError) else getattr(error, "__cause__", None))
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
    found = next(filter(None, (CONTROL_TOKEN.search(turn["content"]) for turn in prompt.messages[-1:])), None)
    if found:
        raise RowFinal(
            Outcome.REJECTED,
            Reason.REFUSED,
            f"the document holds {found[0]!r}, which the server may take for a control token "
            "(GLEANER_OPENAI_CONTROL_TOKENS=keep sends it all the same)",
        )


@lru_cache(maxsize=64)
def _response_format(schema_text: str) -> Any:
    schema = json.loads(schema_text)
    return {"type": "json_schema", "json_schema": {"name": "label", "schema": schema, "strict": True}}


def _generation(prompt: Prompt, completion: ChatCompletion) -> Generation:
    choice = completion.choices[0]
    if choice.message.refusal:
        raise RowFinal(Outcome.INVALID, Reason.REFUSED, f"the model refused: {choice.message.refusal}")
    if choice.finish_reason not in ("stop", "length"):
        raise RequestFailed(f"the server ended the request: {choice.finish_reason}")
    text = choice.message.content or ""
    usage = completion.usage
    details = usage.prompt_tokens_details if usage else None
    return Generation(
        text=text,
        finish_reason=choice.finish_reason,
        prompt_tokens=usage.prompt_tokens if usage else prompt.size,
        output_tokens=usage.completion_tokens if usage else _estimate(text),
        cached_tokens=(details.cached_tokens if details else None) or 0,
    )


def _bytes(text: str) -> int:
    return len(text.encode("utf-8", "replace"))


def _estimate(text: str) -> int:
    return -(-_bytes(text) // BYTES_PER_TOKEN)


def _root_cause(error: BaseException) -> BaseException:
    while (deeper := error.__cause__ or error.__context__) is not None:
        error = deeper
    return error


def _cause(error: BaseException) -> str:
    """One line: the innermost cause; the client's own words are only that there was no connection."""
    root = _root_cause(error)
    lines = [line.strip() for line in str(root).splitlines() if line.strip()]
    return lines[0] if lines else type(root).__name__
