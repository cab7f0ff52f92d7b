"""Which way a label schema's output is held to it: by the engine's grammar backend, or by the decoder."""

import asyncio
import json
import logging
import os
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from schemas.automaton import OutsideSubset, automaton_of
from worker.decoder.tables import TABLES, Tables, Unspellable, compile_tables
from worker.decoder.vocabulary import UnknownTokenizer, Vocabulary, load_vocabulary

logger = logging.getLogger(__name__)

#: Calls a method of every worker of the engine, with its arguments.
Call = Callable[..., Awaitable[list[Any]]]


@dataclass
class Compiled:
    """A label schema at the engine."""

    number: int
    tables: Tables
    requests: int = 0  #: under way


def cache_folder() -> Path:
    """Where prepared vocabularies are kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gleaner" / "decoder"


class Decoders:
    """The label schemas that an engine's decoder knows. For one event loop."""

    def __init__(self, vocabulary: Vocabulary, end_tokens: list[int], call: Call) -> None:
        self._vocabulary, self._end_tokens, self._call = vocabulary, end_tokens, call
        #: By schema text, the one lately asked for last.
        self._known: OrderedDict[str, Compiled | None] = OrderedDict()
        self._filling = asyncio.Lock()

    @classmethod
    async def install(cls, tokenizer: Tokenizer, end_tokens: list[int], call: Call) -> "Decoders | None":
        """Put the decoder into a running engine; None, and a warning that says why, where it can't be."""
        try:
            vocabulary, file = await asyncio.to_thread(load_vocabulary, tokenizer, cache_folder())
            faults = {fault for fault in await call("install_decoder", str(file)) if fault}
        except UnknownTokenizer as error:
            faults = {str(error)}
        if faults:
            logger.warning("label schemas go through the grammar backend: %s", "; ".join(sorted(faults)))
            return None
        return cls(vocabulary, end_tokens, call)

    async def get(self, schema_text: str) -> Compiled | None:
        """A label schema, compiled when it is first asked for; None for one that the grammar backend has to take."""
        if schema_text not in self._known:
            async with self._filling:
                # Others asked for it at the same time, and the first has it by now.
                if schema_text not in self._known:
                    self._known[schema_text] = await self._compiled(schema_text)
        self._known.move_to_end(schema_text)
        return self._known[schema_text]

    async def _compiled(self, schema_text: str) -> Compiled | None:
        try:
            tables = await asyncio.to_thread(self._compile, schema_text)
        except (OutsideSubset, Unspellable) as error:
            logger.info("a label schema goes through the grammar backend: %s", error)
            return None
        number = await self._free_number()
        if number is None:
            return None
        # Only here: it needs the engine.
        from worker.decoder.extension import pack  # noqa: PLC0415

        await self._call("add_decoder_tables", number, pack(tables))
        return Compiled(number, tables)

    def _compile(self, schema_text: str) -> Tables:
        return compile_tables(automaton_of(json.loads(schema_text)), self._vocabulary, self._end_tokens)

    async def _free_number(self) -> int | None:
        """A number that no label schema has, if need be that of one without requests; None if all are busy."""
        taken = {compiled.number: text for text, compiled in self._known.items() if compiled is not None}
        if len(taken) < TABLES:
            return next(number for number in range(TABLES) if number not in taken)
        for number, text in taken.items():
            compiled = self._known[text]
            if compiled is not None and not compiled.requests:
                del self._known[text]
                await self._call("drop_decoder_tables", number)
                return number
        return None
