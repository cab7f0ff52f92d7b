"""Which way a label schema takes at an engine, and how many it keeps."""

import asyncio
import json
from typing import Any

import pytest

pytest.importorskip("tokenizers", reason="comes with the engine: make setup ENGINE=vllm")

from tokenizers_made import made

from worker.decoder.tables import TABLES
from worker.engine import decoding
from worker.engine.decoding import Decoders

pytest.importorskip("vllm", reason="make setup ENGINE=vllm")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


class Workers:
    """In place of the engine's: keeps what it is told."""

    def __init__(self, answer: Any = "") -> None:
        self.calls: list[tuple[str, int]] = []
        self._answer = answer

    async def __call__(self, method: str, *arguments: Any) -> list[Any]:
        await asyncio.sleep(0)
        self.calls.append((method, arguments[0]))
        return [self._answer]


def schema(length: int, **more: Any) -> str:
    return json.dumps({"type": "object", "properties": {"a": {"type": "string", "maxLength": length, **more}}})


def decoders(workers: Workers) -> Decoders:
    _, vocabulary, _, end = made("byte level")
    return Decoders(vocabulary, [end], workers)


def test_a_label_schema_is_compiled_once_however_many_ask() -> None:
    workers = Workers()

    async def ask() -> list[Any]:
        known = decoders(workers)
        return await asyncio.gather(*(known.get(schema(5)) for _ in range(9)), known.get(schema(6)))

    *same, other = asyncio.run(ask())
    assert all(compiled is same[0] for compiled in same)
    assert other.number != same[0].number
    assert workers.calls == [("add_decoder_tables", 0), ("add_decoder_tables", 1)]


def test_what_is_outside_the_subset_goes_to_the_grammar_backend() -> None:
    workers = Workers()

    async def ask() -> Any:
        return await decoders(workers).get(schema(5, format="uri"))

    assert asyncio.run(ask()) is None
    assert workers.calls == []


def test_the_label_schema_longest_without_a_request_makes_room() -> None:
    workers = Workers()

    async def ask() -> None:
        known = decoders(workers)
        oldest = [await known.get(schema(length)) for length in range(1, TABLES + 1)]
        assert oldest[0] is not None
        oldest[0].requests += 1
        replacing = await known.get(schema(200))
        assert replacing is not None
        assert replacing.number == 1
        assert workers.calls[-2:] == [("drop_decoder_tables", 1), ("add_decoder_tables", 1)]
        for compiled in (*oldest, replacing):
            compiled.requests += 1
        assert await known.get(schema(201)) is None

    asyncio.run(ask())


def test_an_engine_that_can_t_have_it_says_why(tmp_path, caplog, monkeypatch) -> None:
    monkeypatch.setattr(decoding, "cache_folder", lambda: tmp_path)
    tokenizer, _, _, end = made("byte level")
    assert asyncio.run(Decoders.install(tokenizer, [end], Workers("speculative decoding is on"))) is None
    assert "through the grammar backend: speculative decoding is on" in caplog.text
    assert asyncio.run(Decoders.install(tokenizer, [end], Workers())) is not None
