"""How fast an engine labels: documents fed to it without queue or database, counted by outcome."""

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from itertools import islice
from queue import Empty, SimpleQueue
from typing import Any

from schemas.outcomes import EngineLost, Outcome, RequestFailed, RowFinal
from worker.document import prepare
from worker.engine.base import Engine, Generation, Request
from worker.row import Row, RowInFlight
from worker.specs import Prepared

#: Times ``seconds`` after which a run is cut off. A slow node's first answer takes longer than a fast node's whole run,
#: and a run without an answer says nothing.
CUT_OFF = 6
#: Seconds between looks at clock and engine while nothing ends.
LOOK_S = 0.2


@dataclass
class Figures:
    """What one run came to. Documents cut off by the clock count nowhere."""

    in_flight: int
    seconds: float = 0.0
    documents: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)

    @property
    def documents_per_s(self) -> float:
        return self.documents / self.seconds if self.seconds else 0.0

    @property
    def output_tokens_per_s(self) -> float:
        return self.output_tokens / self.seconds if self.seconds else 0.0

    @property
    def cached_share(self) -> float:
        """Share of the prompts' tokens that the prefix cache held."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    def as_json(self) -> dict[str, Any]:
        """The figures by name."""
        return {
            "in_flight": self.in_flight,
            "documents": self.documents,
            "seconds": round(self.seconds, 3),
            "documents_per_s": round(self.documents_per_s, 2),
            "output_tokens_per_s": round(self.output_tokens_per_s, 1),
            "prompt_tokens": self.prompt_tokens,
            "cached_share": round(self.cached_share, 4),
            "outcomes": dict(self.outcomes),
        }


class Measure:
    """Feeds one label spec's documents to one engine, one try each."""

    def __init__(self, engine: Engine, prepared: Prepared) -> None:
        self._engine = engine
        rules, self._turn = prepared
        self._rules = replace(rules, max_tries=1)

    def run(
        self,
        documents: Iterable[Mapping[str, Any]],
        *,
        in_flight: int,
        seconds: float,
        grammar: bool = True,
    ) -> Figures:
        """Label documents.

        :param documents: with ``ordinal``, ``external_id``, ``text`` and ``meta``.
        :param in_flight: requests at the engine at once. :param grammar: whether outputs are bound to the label schema.
        :param seconds: after so many nothing more is submitted; what is in flight may end, until
            :data:`CUT_OFF` times as many.
        :raises EngineLost: when the engine is gone.
        """
        run = _Run(self._engine, Figures(in_flight), grammar, self._rules.reserved_output_tokens)
        waiting = iter(documents)
        started = last = time.monotonic()
        while (now := time.monotonic()) < started + CUT_OFF * seconds:
            room = in_flight - len(run.open)
            batch = list(islice(waiting, room)) if now < started + seconds else []
            for made in prepare(self._engine, self._rules, self._turn, batch):
                run.start(made)
            if not run.open and not batch:
                break
            if run.open and run.wait():
                last = time.monotonic()
        for future in run.open:
            future.cancel()
        run.figures.seconds = last - started
        return run.figures


class _Run:
    def __init__(self, engine: Engine, figures: Figures, grammar: bool, free_tokens: int) -> None:
        """:param free_tokens: an output's limit without a grammar, which nothing else ends."""
        self.figures = figures
        self.open: dict[Future[Generation], RowInFlight] = {}
        self._engine = engine
        self._grammar = grammar
        self._free_tokens = free_tokens
        self._ended: SimpleQueue[Future[Generation]] = SimpleQueue()

    def start(self, made: Row | RowInFlight) -> None:
        if isinstance(made, Row):
            self._count(made.outcome)
            return
        future = self._engine.submit(self._request(made))
        self.open[future] = made
        future.add_done_callback(self._ended.put)

    def _request(self, row: RowInFlight) -> Request:
        request = row.request()
        if self._grammar:
            return request
        return replace(request, schema_text=None, max_tokens=min(request.max_tokens, self._free_tokens))

    def wait(self) -> bool:
        """Wait a moment for a request to end, and count it."""
        try:
            future = self._ended.get(timeout=LOOK_S)
        except Empty:
            if self._engine.lost:
                raise EngineLost("the engine is gone") from None
            return False
        row = self.open.pop(future)
        try:
            generation = future.result()
        except RowFinal as final:
            self._count(final.outcome)
        except RequestFailed:
            self._count(Outcome.FAILED)
        else:
            self._count(self._outcome(row, generation), generation)
        return True

    def _outcome(self, row: RowInFlight, generation: Generation) -> str:
        if not self._grammar:
            return generation.finish_reason
        row_made = row.take(generation, 0.0)
        assert row_made is not None  # there is one try
        return row_made.outcome

    def _count(self, outcome: str, generation: Generation | None = None) -> None:
        self.figures.documents += 1
        self.figures.outcomes[str(outcome)] += 1
        if generation is not None:
            self.figures.prompt_tokens += generation.prompt_tokens
            self.figures.cached_tokens += generation.cached_tokens
            self.figures.output_tokens += generation.output_tokens
