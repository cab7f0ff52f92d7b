"""The throughput of one node: how it grows with the documents in flight, what the prefix cache and the grammar do."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, islice
from typing import Any

from worker.engine.base import Engine
from worker.measure import Figures, Measure
from worker.specs import Prepared

#: Documents in flight at the last point: an engine's usual sequences a step.
MOST_IN_FLIGHT = 256
#: Documents of a point, by those in flight: the engine is full for three quarters of them.
ROUNDS = 4
#: Documents of a point at least: fewer say little.
LEAST_DOCUMENTS = 8
#: Documents labelled before the first point: kernels and grammar are compiled, the system prompt is in the cache.
WARM_UP = 4


@dataclass(frozen=True)
class Point:
    """One line of the table."""

    grammar: bool
    prefix_cache: str  #: ``cold``: it holds the system prompt, as in a job; ``warm``: it holds whole prompts
    figures: Figures

    def as_json(self) -> dict[str, Any]:
        """Everything by name."""
        return {"grammar": self.grammar, "prefix_cache": self.prefix_cache, **self.figures.as_json()}


class Bench:
    """Measures one engine with one label spec and a sample of a corpus."""

    def __init__(
        self,
        engine: Engine,
        prepared: Prepared,
        sample: Sequence[Mapping[str, Any]],
        *,
        seconds: float,
        most_in_flight: int = MOST_IN_FLIGHT,
    ) -> None:
        """:param seconds: bounds each point; see :meth:`worker.measure.Measure.run`."""
        self._measure = Measure(engine, prepared)
        self._sample = sample
        self._seconds = seconds
        self.steps = [n for n in (2**power for power in range(most_in_flight.bit_length())) if n <= most_in_flight]
        self._numbers = count()

    @property
    def points(self) -> int:
        """Points that :meth:`run` gives."""
        return 2 * len(self.steps) + 1

    def run(self) -> Iterator[Point]:
        """Measure, a point at a time: with grammar and new documents, with grammar and the same again, without grammar.

        :raises EngineLost: when the engine is gone.
        """
        self._measure.run(self._new(WARM_UP), in_flight=WARM_UP, seconds=self._seconds)
        documents: list[dict[str, Any]] = []
        for in_flight in self.steps:
            documents = self._new(self._count(in_flight))
            yield self._point(documents, "cold", in_flight, grammar=True)
        yield self._point(documents, "warm", self.steps[-1], grammar=True)
        for in_flight in self.steps:
            yield self._point(self._new(self._count(in_flight)), "cold", in_flight, grammar=False)

    @staticmethod
    def _count(in_flight: int) -> int:
        return max(LEAST_DOCUMENTS, ROUNDS * in_flight)

    def _point(self, documents: list[dict[str, Any]], prefix_cache: str, in_flight: int, *, grammar: bool) -> Point:
        figures = self._measure.run(documents, in_flight=in_flight, seconds=self._seconds, grammar=grammar)
        return Point(grammar, prefix_cache, figures)

    def _new(self, documents: int) -> list[dict[str, Any]]:
        """Documents that the prefix cache has not seen: the sample over and over, each with a number of its own."""
        return [
            {**document, "text": f"{next(self._numbers)}. {document['text']}"}
            for document in islice(self._over_and_over(), documents)
        ]

    def _over_and_over(self) -> Iterator[Mapping[str, Any]]:
        while True:
            yield from self._sample
