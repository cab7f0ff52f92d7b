"""Documents to prompts: rendered, encoded, made to fit. What can't be prompted is a row at once."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from schemas.outcomes import Outcome, Reason, RowFinal
from schemas.user_turn import UserTurn
from worker.engine.base import Engine
from worker.over_long import Parts, cut
from worker.row import Row, RowInFlight, RowRules, final_row

#: Cuts of one document before it is rejected: each leaves out what the one before had too many.
MAX_CUTS = 4


def prepare(
    engine: Engine, rules: RowRules, turn: UserTurn, documents: Sequence[Mapping[str, Any]]
) -> Iterator[Row | RowInFlight]:
    """What becomes of each document of a chunk: a row that is final already, or one or more that can be submitted.

    :param documents: with ``ordinal``, ``external_id``, ``text`` and ``meta``.
    """
    texts: list[str] = []
    ready: list[Mapping[str, Any]] = []
    for document in documents:
        try:
            texts.append(turn.render(document["external_id"], document["text"], document["meta"]))
            ready.append(document)
        except RowFinal as final:
            yield final_row(document["ordinal"], final)
    # All at once: the tokenizer works on them with threads of its own.
    for document, prompt in zip(ready, engine.encode(rules.spec.system_prompt, texts), strict=True):
        excess = rules.excess(prompt.size)
        if excess <= 0:
            yield RowInFlight(rules, document["ordinal"], prompt)
            continue
        try:
            yield from _fit(engine, rules, turn, document, excess)
        except RowFinal as final:
            final = RowFinal(final.outcome, final.code, f"{final.reason}; {rules.room_words}")
            yield final_row(document["ordinal"], final, prompt_tokens=prompt.size)


def _fit(
    engine: Engine, rules: RowRules, turn: UserTurn, document: Mapping[str, Any], excess: int
) -> Iterator[RowInFlight]:
    text = document["text"]
    offsets = engine.offsets(text)
    for _ in range(MAX_CUTS):
        pieces = cut(rules.spec.over_long, text, excess, offsets)
        turns = [turn.render(document["external_id"], piece, document["meta"]) for piece in pieces.texts]
        prompts = engine.encode(rules.spec.system_prompt, turns)
        over = max(rules.excess(prompt.size) for prompt in prompts)
        if over <= 0:
            break
        excess += over
    else:
        raise RowFinal(Outcome.REJECTED, Reason.OVER_LONG, f"after {MAX_CUTS} cuts the prompt still does not fit")
    if len(prompts) == 1:
        yield RowInFlight(rules, document["ordinal"], prompts[0], dropped_tokens=pieces.dropped_tokens)
        return
    parts = Parts(document["ordinal"], len(prompts), rules.spec, rules.check)
    for number, prompt in enumerate(prompts):
        yield RowInFlight(rules, document["ordinal"], prompt, collect=partial(parts.add, number))
