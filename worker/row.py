"""One document on its way to its row: request, validation, tries, outcome. No threads and no services in here."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from schemas.budget import room_words
from schemas.jsontext import make_storable
from schemas.label_spec import LabelSpec
from schemas.outcomes import Outcome, Reason, RequestFailed, RowFinal
from schemas.printable import counted
from worker.check import LabelCheck
from worker.engine.base import ONLY_THOUGHT, Generation, Prompt, Request

#: Temperature of a further try when the spec is greedy: the same sampling would give the same fault again.
RETRY_TEMPERATURE = 0.7
#: Tries for a row whose output meets its limit: the first has all the room there is, so a third would be for nothing.
TRUNCATED_TRIES = 2
#: Characters of an error's words kept on a row.
REASON_CHARS = 500


@dataclass(slots=True)
class Row:
    """A row as it is written; see the table ``labels`` for the fields."""

    ordinal: int
    outcome: str
    label: Any = None
    reason_code: str | None = None
    reason: str | None = None
    raw_output: str | None = None
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    dropped_tokens: int = 0
    parts: int = 1
    output_tokens: int | None = None
    cached_tokens: int | None = None
    tries: int = 0
    latency_s: float | None = None

    def as_json(self) -> dict[str, Any]:
        """The fields by column name."""
        return asdict(self)


def final_row(ordinal: int, final: RowFinal, **known: Any) -> Row:
    """The row of a document that ends without a label. Text that Postgres can't store is made storable."""
    raw = known.pop("raw_output", None)
    return Row(
        ordinal,
        final.outcome,
        reason_code=final.code,
        reason=make_storable(final.reason)[:REASON_CHARS],
        raw_output=None if raw is None else make_storable(raw),
        **known,
    )


@dataclass(frozen=True)
class RowRules:
    """What the rows of one chunk share."""

    spec: LabelSpec
    check: LabelCheck
    max_model_len: int  #: tokens of prompt and output together
    max_tries: int  #: for one row
    seed: int

    @cached_property
    def schema_text(self) -> str:
        return self.spec.schema_text

    @cached_property
    def max_output_tokens(self) -> int:
        return self.spec.max_output_tokens

    @cached_property
    def reserved_output_tokens(self) -> int:
        return self.spec.reserved_output_tokens

    @property
    def room_words(self) -> str:
        """Why so many tokens of a prompt fit and no more."""
        return room_words(self.max_model_len, self.reserved_output_tokens)

    def excess(self, prompt_tokens: int) -> int:
        """Tokens that a prompt has too many: it must leave room in the context for a label. 0 or less: it fits."""
        return prompt_tokens + self.reserved_output_tokens - self.max_model_len


class RowInFlight:
    """A document whose prompt is at the engine, or about to be."""

    def __init__(
        self,
        rules: RowRules,
        ordinal: int,
        prompt: Prompt,
        *,
        dropped_tokens: int = 0,
        collect: Callable[[Row], Row | None] | None = None,
    ) -> None:
        """
        :param prompt: one that fits.
        :param dropped_tokens: tokens of the document that were cut off to make it fit.
        :param collect: for one part of a document: takes the part's row, gives the document's once all parts are there.
        """
        self.ordinal = ordinal
        self.collect = collect
        self._rules = rules
        self._prompt = prompt
        self._prompt_tokens = prompt.size
        self._dropped_tokens = dropped_tokens
        self._max_tokens = min(rules.max_output_tokens, rules.max_model_len - prompt.size)
        self._tries = 0
        self._latency_s = 0.0

    def request(self) -> Request:
        """The next try's request. The first is sampled as the spec says; a further one differs by seed and warmth."""
        sampling = self._rules.spec.sampling
        self._tries += 1
        return Request(
            prompt=self._prompt,
            schema_text=self._rules.schema_text,
            max_tokens=self._max_tokens,
            temperature=sampling.temperature if self._tries == 1 else max(sampling.temperature, RETRY_TEMPERATURE),
            top_p=sampling.top_p,
            seed=self._rules.seed + self._tries - 1,
        )

    def take(self, generation: Generation, latency_s: float) -> Row | None:
        """The row that a generation makes, or None when the row deserves another try."""
        self._latency_s += latency_s
        self._prompt_tokens = generation.prompt_tokens
        known: dict[str, Any] = {
            "finish_reason": generation.finish_reason,
            "output_tokens": generation.output_tokens,
            "cached_tokens": generation.cached_tokens,
        }
        try:
            if generation.finish_reason == "length":
                raise RowFinal(
                    Outcome.TRUNCATED,
                    Reason.OUTPUT_LIMIT,
                    f"the output was cut at {counted(generation.output_tokens, 'token')}",
                )
            label = self._rules.check.label(generation.text)
        except RowFinal as final:
            max_tries = self._rules.max_tries
            if final.outcome == Outcome.TRUNCATED:
                max_tries = min(max_tries, TRUNCATED_TRIES)
            if self._tries < max_tries:
                return None
            if generation.only_thought:
                final = RowFinal(final.outcome, final.code, f"{final.reason}; {ONLY_THOUGHT}")
            return self._end(final, raw_output=generation.text or generation.thoughts, **known)
        return Row(self.ordinal, Outcome.OK, label=label, **self._figures(), **known)

    def fail(self, error: RowFinal | RequestFailed, latency_s: float) -> Row | None:
        """The row that a failed request makes, or None when the row deserves another try."""
        self._latency_s += latency_s
        if isinstance(error, RowFinal):
            return self._end(error)
        if self._tries < self._rules.max_tries:
            return None
        return self._end(RowFinal(Outcome.FAILED, Reason.ENGINE_ERROR, str(error)))

    def _end(self, final: RowFinal, **known: Any) -> Row:
        return final_row(self.ordinal, final, **self._figures(), **known)

    def _figures(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self._prompt_tokens,
            "dropped_tokens": self._dropped_tokens,
            "tries": self._tries,
            "latency_s": round(self._latency_s, 4),
        }
