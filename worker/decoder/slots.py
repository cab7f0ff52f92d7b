"""Which request has which slot, and how a label begins or goes on after a preemption."""

from collections.abc import Container, Sequence
from typing import Any

import numpy as np

from worker.decoder import ARGUMENT
from worker.decoder.batch import NO_LIMIT, Batch, Rows
from worker.decoder.tables import Place, Tables
from worker.decoder.vocabulary import Vocabulary
from worker.decoder.walk import Walk


class Slots:
    """Requests by id, over a :class:`Batch`."""

    def __init__(self, batch: Batch, vocabulary: Vocabulary, slots: int, max_model_len: int) -> None:
        """:param slots: how many are given out before those of ended requests are looked for."""
        self._batch, self._vocabulary, self._max_model_len = batch, vocabulary, max_model_len
        self._walks: dict[int, Walk] = {}
        self._free = list(range(slots - 1, -1, -1))
        self._slots = slots
        self._by_request: dict[str, int] = {}

    def add(self, number: int, tables: Tables) -> None:
        """Make a label schema known by its number."""
        self._walks[number] = Walk(tables, self._vocabulary)
        self._batch.add(number, tables)

    def drop(self, number: int) -> None:
        """Forget a label schema that no request has."""
        self._walks.pop(number, None)
        self._batch.drop(number)

    def start(
        self, request: str, parameters: Any, prompt_tokens: int, output: Sequence[int], alive: Container[str]
    ) -> None:
        """Begin a request's label, or take it up behind the output that it has.

        :param parameters: the request's sampling parameters. :param alive: the requests that the engine knows.
        """
        number = (getattr(parameters, "extra_args", None) or {}).get(ARGUMENT)
        if number is None or number not in self._walks:
            self.end(request)
            return
        walk = self._walks[number]
        room = min(prompt_tokens + (parameters.max_tokens or NO_LIMIT), self._max_model_len)
        # With less room than the shortest label takes it is cut in any case, and valid up to there.
        end = room if room - prompt_tokens >= walk.tables.needed else NO_LIMIT
        place: Place | None = walk.start
        for token in output:
            place = place and walk.step(place, token)
        if place is not None:
            position = prompt_tokens - 1 + len(output)
            self._batch.start(self._slot(request, alive), number, place, position, end)

    def end(self, request: str) -> None:
        """Give a request's slot back, if it has one."""
        slot = self._by_request.pop(request, None)
        if slot is not None:
            self._free.append(slot)

    def rows(self, requests: Sequence[str]) -> Rows | None:
        """The slots of a step's rows, -1 for a request without one; None where none has."""
        if not self._by_request:
            return None
        rows = np.array([self._by_request.get(request, -1) for request in requests], np.int32)
        return rows if (rows >= 0).any() else None

    def apply(self, logits: Any, rows: Rows, positions: Any, tokens: Any) -> None:
        """See :meth:`worker.decoder.batch.Batch.apply`."""
        self._batch.apply(logits, rows, positions, tokens)

    def _slot(self, request: str, alive: Container[str]) -> int:
        if request not in self._by_request:
            if not self._free:
                # The engine says nothing when a request ends.
                for ended in [known for known in self._by_request if known not in alive]:
                    self.end(ended)
            if not self._free:
                self._free = list(range(2 * self._slots - 1, self._slots - 1, -1))
                self._slots *= 2
            self._by_request[request] = self._free.pop()
        return self._by_request[request]
