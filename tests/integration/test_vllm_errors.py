"""What vLLM raises and returns, by class, to what the worker does with it. The engine's core is not started."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from schemas.outcomes import EngineLost, Outcome, Reason, RequestFailed, RowFinal
from schemas.settings import Settings
from worker.engine.base import Prompt, Request
from worker.engine.vllm import VllmEngine

pytest.importorskip("vllm", reason="make setup ENGINE=vllm")

REQUEST = Request(
    Prompt(size=3, tokens=(1, 2, 3)), schema_text='{"type":"object"}', max_tokens=9, temperature=0, top_p=1, seed=0
)


class Core:
    """In place of AsyncLLM: ends a request in the way a test wants."""

    errored = False

    def __init__(self, ending: Any) -> None:
        self._ending = ending

    async def generate(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
        await asyncio.sleep(0)
        if isinstance(self._ending, BaseException):
            raise self._ending
        if self._ending is not None:
            yield self._ending


def output(finish_reason: str | None) -> SimpleNamespace:
    completion = SimpleNamespace(text='{"a":1}', finish_reason=finish_reason, token_ids=[5, 6])
    return SimpleNamespace(outputs=[completion], num_cached_tokens=None)


@pytest.fixture
def engine(clean_environment: None) -> Iterator[VllmEngine]:
    engine = VllmEngine(Settings(engine="vllm"))
    engine._loop.start()
    yield engine
    engine._llm = None
    engine.close()


def ask(engine: VllmEngine, ending: Any) -> Any:
    engine._llm = Core(ending)
    return engine.submit(REQUEST).result(timeout=30)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_each_ending_has_its_consequence(engine: VllmEngine) -> None:
    from vllm.exceptions import VLLMValidationError
    from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

    done = ask(engine, output("stop"))
    assert (done.text, done.finish_reason, done.output_tokens, done.cached_tokens) == ('{"a":1}', "stop", 2, 0)
    assert ask(engine, output("length")).finish_reason == "length"

    for refusal in (VLLMValidationError("over-long"), ValueError("The decoder prompt cannot be empty")):
        with pytest.raises(RowFinal) as final:
            ask(engine, refusal)
        assert (final.value.outcome, final.value.code) == (Outcome.REJECTED, Reason.REFUSED)

    for trouble in (EngineGenerateError("step"), RuntimeError("?"), output("abort"), output("error"), None):
        with pytest.raises(RequestFailed):
            ask(engine, trouble)

    with pytest.raises(EngineLost):
        ask(engine, EngineDeadError())


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_any_failure_of_a_dead_engine_is_its_loss(engine: VllmEngine) -> None:
    engine._llm = Core(RuntimeError("socket closed"))
    engine._llm.errored = True
    assert engine.lost
    with pytest.raises(EngineLost):
        engine.submit(REQUEST).result(timeout=30)
