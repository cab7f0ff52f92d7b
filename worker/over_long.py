"""What becomes of a document that does not fit: cut it, or label it in parts and merge. Instructions are never cut."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from schemas.budget import MAX_PARTS, MIN_DOCUMENT_TOKENS
from schemas.label_spec import LabelSpec
from schemas.outcomes import Outcome, OverLong, Reason, RowFinal
from worker.check import LabelCheck
from worker.row import Row, final_row

#: Tokens beside the excess that a cut leaves out: text cut anew can tokenize to a few more.
MARGIN_TOKENS = 8
#: Stands where the middle was.
ELLIPSIS = " […] "


@dataclass(frozen=True, slots=True)
class Cut:
    """The texts to label in place of one document, and how many of its tokens are in none of them."""

    texts: list[str]
    dropped_tokens: int


def cut(policy: OverLong, text: str, excess: int, offsets: Sequence[int]) -> Cut:
    """Make a document fit.

    :param excess: tokens that its prompt has too many. :param offsets: where each token of ``text`` starts, in
        characters.
    :raises RowFinal: ``over_long`` when the policy is to reject, or nothing sensible would be left.
    """
    keep = len(offsets) - excess - MARGIN_TOKENS
    if policy == OverLong.REJECT or keep < MIN_DOCUMENT_TOKENS:
        raise RowFinal(Outcome.REJECTED, Reason.OVER_LONG, f"the prompt has {excess:,} tokens more than fit")
    if policy == OverLong.SPLIT:
        starts = [*(offsets[n] for n in range(0, len(offsets), keep)), len(text)]
        if len(starts) - 1 > MAX_PARTS:
            raise RowFinal(
                Outcome.REJECTED, Reason.OVER_LONG, f"{len(starts) - 1} parts would be needed, {MAX_PARTS} are allowed"
            )
        pieces = [text[first:last] for first, last in pairwise(starts)]
        return Cut([piece for piece in pieces if not piece.isspace()], 0)
    dropped = len(offsets) - keep
    if policy == OverLong.TRUNCATE_TAIL:
        return Cut([text[: offsets[keep]]], dropped)
    if policy == OverLong.TRUNCATE_HEAD:
        return Cut([text[offsets[dropped] :]], dropped)
    head = keep // 2
    return Cut([text[: offsets[head]] + ELLIPSIS + text[offsets[head + dropped] :]], dropped)


@dataclass
class Parts:
    """The parts of one split document, until all are labelled."""

    ordinal: int
    count: int
    spec: LabelSpec
    check: LabelCheck
    _rows: dict[int, Row] = field(default_factory=dict)

    def add(self, number: int, row: Row) -> Row | None:
        """Take a part's row; the document's row once all parts are there.

        The row is ``ok`` if every part is; otherwise it ends as its first part that is not.
        """
        self._rows[number] = row
        if len(self._rows) < self.count:
            return None
        rows = [self._rows[number] for number in range(self.count)]
        known: dict[str, Any] = {
            "parts": self.count,
            "finish_reason": rows[-1].finish_reason,
            "prompt_tokens": _total(row.prompt_tokens for row in rows),
            "output_tokens": _total(row.output_tokens for row in rows),
            "cached_tokens": _total(row.cached_tokens for row in rows),
            "tries": sum(row.tries for row in rows),
            "latency_s": max(row.latency_s or 0.0 for row in rows),
        }
        for position, part in enumerate(rows, start=1):
            if part.outcome != Outcome.OK:
                assert part.reason_code is not None
                reason = f"part {position} of {self.count}: {part.reason}"
                final = RowFinal(Outcome(part.outcome), Reason(part.reason_code), reason)
                return final_row(self.ordinal, final, raw_output=part.raw_output, **known)
        try:
            label = self.check.validated(merge(self.spec, [row.label for row in rows]))
        except RowFinal as final:
            return final_row(self.ordinal, final, **known)
        return Row(self.ordinal, Outcome.OK, label=label, **known)


def _total(figures: Any) -> int:
    return sum(figure or 0 for figure in figures)


def merge(spec: LabelSpec, labels: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One label of several parts' labels, field by field.

    Enums, booleans and numbers: the value that most parts gave, of equals the one given first. Lists: every item once,
    in order, up to ``maxItems``. Everything else: the first part's that is not empty.
    """
    return {
        name: _field_rule(schema)(schema, [label[name] for label in labels if name in label])
        for name, schema in spec.json_schema["properties"].items()
        if any(name in label for label in labels)
    }


def _field_rule(schema: dict[str, Any]) -> Callable[[dict[str, Any], list[Any]], Any]:
    if "enum" in schema or schema.get("type") in ("boolean", "integer", "number"):
        return _most_given
    return _union if schema.get("type") == "array" else _first_given


def _most_given(_: dict[str, Any], values: list[Any]) -> Any:
    return Counter(values).most_common(1)[0][0]


def _union(schema: dict[str, Any], values: list[Any]) -> list[Any]:
    items: list[Any] = []
    for value in values:
        items.extend(item for item in value if item not in items)
    return items[: schema.get("maxItems")]


def _first_given(_: dict[str, Any], values: list[Any]) -> Any:
    return next((value for value in values if value), values[0])
