"""A server with an OpenAI-compatible API, as the ``openai`` engine sees it: what it serves, whether it is there."""

import asyncio
import logging
import ssl
from collections.abc import Callable
from typing import Any
from urllib.parse import SplitResult, urlsplit

from openai import APIConnectionError, APIStatusError, AsyncOpenAI, OpenAIError, Timeout
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_after_delay, wait_random_exponential

from schemas.errors import EngineUnavailable
from schemas.settings import Settings

logger = logging.getLogger(__name__)

#: Seconds for a connection, and for an answer that costs the server nothing.
CONNECT_TIMEOUT_S = 5.0
LOOK_TIMEOUT_S = 10.0
#: Longest pause between two looks at a server that is away, in seconds: its return is noticed soon.
MAX_LOOK_PAUSE_S = 5.0
#: Documents counted at once: beside the labelling, not instead of it.
COUNTING = 16

#: ``owned_by`` of servers that hand ``chat_template_kwargs`` to the template; others refuse the unknown field.
_WITH_TEMPLATE_KWARGS = {"vllm", "sglang"}


class Server:
    """The server that the settings name. All coroutines run on one loop."""

    def __init__(self, settings: Settings) -> None:
        """:raises EngineUnavailable: for an address that is none."""
        url = _checked_url(settings)
        key = settings.openai_api_key
        self._away_s = settings.openai_lost_after_s
        self._settings = settings
        self._root = url.geturl().rstrip("/").removesuffix("/v1")  #: of what lies beside the API
        self._counting = asyncio.Semaphore(COUNTING)
        self._search: asyncio.Task[None] | None = None
        #: Without user and password.
        self.address = url._replace(netloc=url.netloc.rpartition("@")[2]).geturl()
        self.model = settings.model_path or settings.model
        self.version = "unknown"
        self.max_model_len = 0
        self.counts = False  #: whether it counts tokens
        self.extra_body: dict[str, Any] = {}  #: for each request
        self.lost: str | None = None  #: why it counts as gone
        self.on_lost: Callable[[], None] = lambda: None
        self.client = AsyncOpenAI(
            base_url=url.geturl(),
            api_key=(key.get_secret_value() if key else "") or "none",
            # The engine's own retries tell a row's failure from the server's.
            max_retries=0,
            timeout=Timeout(settings.openai_timeout_s, connect=CONNECT_TIMEOUT_S),
        )

    async def open(self) -> None:
        """Wait for the server and learn what it is.

        :raises EngineUnavailable: it is not there, refuses us or does not serve the model.
        """
        try:
            served = await self._find(_passes)
        except Exception as error:
            raise EngineUnavailable(self._remedy(error)) from error
        kind = str(served.get("owned_by") or "unknown")
        self.max_model_len = _max_model_len(served, self._settings)
        kwargs = self._settings.chat_template_kwargs
        if kwargs and kind in _WITH_TEMPLATE_KWARGS:
            self.extra_body["chat_template_kwargs"] = kwargs
        self.extra_body |= self._settings.openai_extra_body
        said = await self._beside(self.client.get, "/version")
        self.version = f"{kind} {said['version']}" if "version" in said else kind
        self.counts = await self.count(messages=[{"role": "user", "content": "a"}]) is not None

    async def _find(self, passes: Callable[[BaseException], bool]) -> dict[str, Any]:
        """What the server says of the model; asked until it answers or was away for too long."""
        retrying = AsyncRetrying(
            retry=retry_if_exception(passes),
            wait=wait_random_exponential(multiplier=0.2, max=MAX_LOOK_PAUSE_S),
            stop=stop_after_delay(self._away_s),
            before_sleep=self._say_once,
            reraise=True,
        )
        return await retrying(self._look)

    def _say_once(self, state: RetryCallState) -> None:
        if state.attempt_number == 1 and state.outcome:
            error = state.outcome.exception()
            logger.warning("%s is away, waiting %g s for it: %s", self.address, self._away_s, error and cause(error))

    async def _look(self) -> dict[str, Any]:
        answer: Any = await self.client.get("/models", cast_to=object, options={"timeout": LOOK_TIMEOUT_S})
        try:
            served = {str(model["id"]): dict(model) for model in answer["data"]}
        except (LookupError, TypeError, ValueError):
            raise EngineUnavailable("its /models is no list of models: is this an OpenAI-compatible API?") from None
        if self.model not in served:
            raise EngineUnavailable(
                f"it does not serve {self.model!r} but {', '.join(sorted(served)) or 'nothing'}: set GLEANER_MODEL, or "
                "GLEANER_MODEL_PATH where the server's name for it is another"
            )
        return served[self.model]

    async def _beside(self, call: Callable[..., Any], path: str, **more: Any) -> dict[str, Any]:
        """What the server answers outside the API; nothing where it has no such page or is in trouble."""
        try:
            answer = await call(self._root + path, cast_to=object, options={"timeout": LOOK_TIMEOUT_S}, **more)
        except (OpenAIError, ValueError):
            return {}
        return answer if isinstance(answer, dict) else {}

    async def count(self, **what: Any) -> int | None:
        """Tokens of a ``prompt`` or of ``messages`` by vLLM's ``/tokenize``; None where that is not to be had."""
        if "messages" in what and "chat_template_kwargs" in self.extra_body:
            what["chat_template_kwargs"] = self.extra_body["chat_template_kwargs"]
        async with self._counting:
            if self.lost is not None:  # a chunk's worth of time-outs would hold up the worker's end
                return None
            answer = await self._beside(self.client.post, "/tokenize", body={"model": self.model, **what})
        count = answer.get("count")
        return count if isinstance(count, int) else None

    async def wait(self) -> None:
        """Return when the server answers and serves the model, or is lost. One asks for all that wait."""
        if self._search is None or self._search.done():
            self._search = asyncio.create_task(self._search_for_it())
        await asyncio.shield(self._search)

    async def _search_for_it(self) -> None:
        try:
            await self._find(lambda _: True)
        except Exception as error:
            self.lose(f"{self.address} was away for {self._away_s:g} s: {cause(error)}")

    def lose(self, why: str) -> None:
        """From now on the server counts as gone."""
        self.lost = why
        self.on_lost()

    def _remedy(self, error: Exception) -> str:
        if isinstance(error, EngineUnavailable):
            return f"{self.address}: {error}"
        if isinstance(error, APIStatusError):
            status = f"HTTP {error.status_code}"
            if error.status_code in (401, 403):
                return f"{self.address} refuses the key ({status}): set GLEANER_OPENAI_API_KEY"
            return f"{self.address}/models answers {status}: set GLEANER_OPENAI_BASE_URL; most addresses end in /v1"
        if isinstance(_root(error), ssl.SSLError):
            return (
                f"no TLS with {self.address}: {cause(error)}. Is it http? For a certificate of your own, set "
                "SSL_CERT_FILE to its authority's"
            )
        return (
            f"no answer from {self.address} in {self._away_s:g} s: {cause(error)}. Start the server or set "
            "GLEANER_OPENAI_BASE_URL"
        )


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


def _max_model_len(served: dict[str, Any], settings: Settings) -> int:
    limits = [limit for limit in (served.get("max_model_len"), settings.max_model_len) if isinstance(limit, int)]
    if not limits:
        raise EngineUnavailable(
            "the server does not say how long the model's context is: set GLEANER_MAX_MODEL_LEN to the tokens of "
            "prompt and output together that it was started with"
        )
    return min(limits)


def _passes(error: BaseException) -> bool:
    """Whether waiting can help at start: a server that loads its model, not a wrong address, key or model."""
    if isinstance(error, APIStatusError):
        return transient(error)
    return isinstance(error, APIConnectionError) and not isinstance(_root(error), ssl.SSLError)


def transient(error: APIStatusError) -> bool:
    """Whether the same request may be answered later: time-out, conflict, too early, too many, server's trouble."""
    return error.status_code in (408, 409, 425, 429) or error.status_code >= 500


def _root(error: BaseException) -> BaseException:
    while (deeper := error.__cause__ or error.__context__) is not None:
        error = deeper
    return error


def cause(error: BaseException) -> str:
    """One line: why. Of a missing connection the innermost cause; the client only says that there was none."""
    root = _root(error) if isinstance(error, APIConnectionError) else error
    lines = [line.strip() for line in str(root).splitlines() if line.strip()]
    return lines[0] if lines else type(root).__name__
