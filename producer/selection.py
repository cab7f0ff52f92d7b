"""Which records of a corpus are loaded, and in which order."""

import heapq
import operator
import random
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from schemas.errors import UsageError

_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_CONDITION = re.compile(r"\s*(?P<field>.+?)\s*(?P<operator><=|>=|!=|=|<|>)\s*(?P<value>.*?)\s*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Condition:
    """A comparison of one field with a value, as ``year>=2015`` or ``field=physics``."""

    field: str
    operator: str
    value: str

    @classmethod
    def parse(cls, text: str) -> "Condition":
        """Read what ``--where`` takes.

        :raises UsageError: when it is no comparison.
        """
        found = _CONDITION.fullmatch(text)
        if found is None:
            raise UsageError(f"--where {text!r} is no comparison: FIELD=VALUE, with one of {' '.join(_OPERATORS)}")
        return cls(**found.groupdict())

    def holds(self, record: dict[str, Any]) -> bool:
        """Whether a record has the field, with such a value: as numbers if both are, else as text. Of a list one item
        must do."""
        value = record.get(self.field)
        if isinstance(value, list):
            return any(self._compare(item) for item in value)
        return value is not None and self._compare(value)

    def _compare(self, value: Any) -> bool:
        compare = _OPERATORS[self.operator]
        if isinstance(value, bool):
            value = str(value).lower()
        try:
            return compare(float(value), float(self.value))
        except (TypeError, ValueError):
            return compare(str(value), self.value)

    def __str__(self) -> str:
        return f"{self.field}{self.operator}{self.value}"


@dataclass(frozen=True, slots=True)
class Selection:
    """Which records become documents of a corpus. What is not selected is neither document nor reject."""

    where: tuple[Condition, ...] = ()
    limit: int | None = None  #: the first so many
    sample: int | None = None  #: so many by chance
    seed: int = 0  #: of the chance
    group_by: tuple[str, ...] = ()  #: documents with the same values of these fields stand together
    only_new: bool = False  #: of a corpus loaded before, those that are new or changed

    def matches(self, record: dict[str, Any]) -> bool:
        """Whether a record meets every condition."""
        return not self.where or all(condition.holds(record) for condition in self.where)

    @property
    def narrowing(self) -> dict[str, Any]:
        """What makes the corpus smaller than its input, as JSON: corpora are compared only if it is the same."""
        return {
            **({"where": list(map(str, self.where))} if self.where else {}),
            **({"limit": self.limit} if self.limit is not None else {}),
            **({"sample": self.sample, "seed": self.seed} if self.sample is not None else {}),
        }

    def as_json(self) -> dict[str, Any]:
        """Everything, as JSON: for the fingerprint and the table of corpora."""
        return {
            **self.narrowing,
            **({"group_by": list(self.group_by)} if self.group_by else {}),
            **({"only_new": True} if self.only_new else {}),
        }


def draw(positions: Iterable[int], count: int, seed: int) -> frozenset[int]:
    """So many of the positions by chance, each as likely as another; the same for the same seed. Holds ``count``."""
    chance = random.Random(seed)
    drawn: list[tuple[float, int]] = []
    for position in positions:
        entry = (-chance.random(), position)
        if len(drawn) < count:
            heapq.heappush(drawn, entry)
        elif entry > drawn[0]:
            heapq.heapreplace(drawn, entry)
    return frozenset(position for _, position in drawn)
