"""What a job will take, before it runs: tokens, GPU hours and money, from a sample and from what was measured."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import sqrt
from statistics import fmean, pstdev
from typing import Any

from producer.tokens import TEMPLATE_TOKENS, TokenCounter, token_counter
from schemas.database import Connection, queries
from schemas.label_spec import LabelSpec
from schemas.outcomes import RowFinal
from schemas.settings import Settings
from schemas.user_turn import UserTurn

#: Documents that are tokenized: their mean is then known to a few percent, in well under a second.
SAMPLE = 300
#: Standard errors on each side of a mean within which the true one lies 19 times out of 20.
SIGMAS = 1.96
#: Finished jobs that are looked at for a rate.
LAST_JOBS = 5
#: Rows of a job that its tokens are told by.
ROWS = 2000
#: Characters of a label, with every string full, for each token that models in fact wrote: `ops/BENCHMARKS.md` has 68
#: tokens a row under a label schema of 299.
LABEL_CHARS_A_TOKEN = 4.4
#: Output tokens a second of one node, by its profile, as measured in `ops/BENCHMARKS.md` and on two cores. Of models of
#: 135 million to 8,000 million parameters; a larger one is slower.
MEASURED_RATES = {"h200": 5500.0, "cpu": 70.0}


@dataclass(frozen=True, slots=True)
class History:
    """What the last jobs of a model took: figures a row, and rates of one worker."""

    prompt_tokens: float
    output_tokens: float
    output_spread: float
    cached_share: float
    chars_a_token: float
    output_tokens_per_s: float
    same_spec: bool  #: whether they had the label spec in question


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a job is expected to take. Tokens are of the whole job; ``spread`` is the share by which the true number
    may differ, 19 times out of 20. None: nothing is known."""

    documents: int
    prompt_tokens: int
    prompt_spread: float
    output_tokens: int
    output_spread: float
    over_long_share: float | None
    cached_share: float
    seconds: float | None
    gpu_hours: float | None
    cost: float | None
    workers: int
    basis: dict[str, str]  #: where tokens, output and rate come from, in words

    def as_json(self) -> dict[str, Any]:
        """Everything by name."""
        return asdict(self)


def history_of(connection: Connection, model: str, label_spec_id: int | None) -> History | None:
    """What the last finished jobs of a model took; those of the label spec in question before others."""
    jobs = list(queries.last_jobs(connection, model=model, batch=LAST_JOBS))
    jobs.sort(key=lambda job: job["label_spec_id"] != label_spec_id)
    for job in jobs:
        rows = queries.token_figures(connection, job_id=job["id"], batch=ROWS)
        if rows["rows"] and rows["output_tokens"]:
            return History(
                prompt_tokens=rows["prompt_tokens"],
                output_tokens=rows["output_tokens"],
                output_spread=rows["output_spread"] / sqrt(rows["rows"]),
                cached_share=rows["cached_tokens"] / rows["prompt_tokens"],
                chars_a_token=queries.chars_a_token(connection, job_id=job["id"], batch=ROWS),
                output_tokens_per_s=job["total"] * rows["output_tokens"] / job["running_s"] / rows["workers"],
                same_spec=job["label_spec_id"] == label_spec_id,
            )
    return None


def forecast(
    sample: Sequence[Mapping[str, Any]],
    documents: int,
    spec: LabelSpec,
    settings: Settings,
    *,
    history: History | None = None,
    context: int | None = None,
    workers: int = 1,
    rate: float | None = None,
) -> Forecast:
    """Forecast a job.

    :param sample: some of its documents, with ``external_id``, ``text`` and ``meta``.
    :param context: tokens that prompt and output may have together, if that is known.
    :param workers: GPUs that will work on it. :param rate: documents a second of one of them, if the user knows it.
    """
    counter = token_counter(settings, history.chars_a_token if history else None)
    shared, sizes = _prompt_sizes(sample, spec, counter)
    mean = fmean(sizes)
    output, output_spread, output_basis = _output(spec, history)
    seconds, rate_basis = _seconds(documents, output, settings, history, rate, workers)
    limit = context or settings.max_model_len
    hours = None if seconds is None else seconds * workers / 3600
    price = settings.gpu_hour_price
    return Forecast(
        documents=documents,
        prompt_tokens=round(documents * mean),
        prompt_spread=SIGMAS * pstdev(sizes) / sqrt(len(sizes)) / mean if mean else 0.0,
        output_tokens=round(documents * output),
        output_spread=output_spread,
        over_long_share=None
        if limit is None
        else sum(size + spec.reserved_output_tokens > limit for size in sizes) / len(sizes),
        cached_share=history.cached_share if history and history.same_spec else shared / mean if mean else 0.0,
        seconds=seconds,
        gpu_hours=hours,
        cost=None if hours is None or price is None else hours * price,
        workers=workers,
        basis={"prompt tokens": counter.basis, "output tokens": output_basis, "rate": rate_basis},
    )


def forecast_corpus(
    connection: Connection,
    corpus_id: int,
    documents: int,
    spec: LabelSpec,
    spec_id: int,
    settings: Settings,
    model: str,
) -> Forecast | None:
    """Forecast a job over a corpus that is loaded; None when no document of it could be drawn."""
    last = queries.last_ordinal(connection, corpus_id=corpus_id)
    chance = random.Random(corpus_id)
    # Of ordinals that are rejects' there is no document; a few more are asked for.
    ordinals = sorted({chance.randint(0, last or 0) for _ in range(2 * SAMPLE)})
    found = list(queries.sample_documents(connection, corpus_id=corpus_id, ordinals=ordinals))
    if not found:
        return None
    return forecast(
        chance.sample(found, min(SAMPLE, len(found))),
        documents,
        spec,
        settings,
        history=history_of(connection, model, spec_id),
        context=queries.last_context(connection, model=model),
    )


def _prompt_sizes(sample: Sequence[Mapping[str, Any]], spec: LabelSpec, counter: TokenCounter) -> tuple[int, list[int]]:
    """Tokens that every prompt has in common, and tokens of each."""
    turn = UserTurn(spec)
    turns = []
    for document in sample:
        try:
            turns.append(turn.render(document["external_id"], document["text"], document["meta"]))
        except RowFinal:  # its row says so; it costs nothing
            turns.append("")
    shared = counter.count([spec.system_prompt])[0] + TEMPLATE_TOKENS
    return shared, [shared + size for size in counter.count(turns)]


def _output(spec: LabelSpec, history: History | None) -> tuple[float, float, str]:
    if history is not None and history.same_spec:
        spread = SIGMAS * history.output_spread / history.output_tokens
        return history.output_tokens, spread, "measured in the last job with this label spec"
    guess = spec.reserved_output_tokens / LABEL_CHARS_A_TOKEN
    return guess, 1.0, f"a guess from the label schema, which needs {spec.reserved_output_tokens} at most"


def _seconds(
    documents: int,
    output: float,
    settings: Settings,
    history: History | None,
    rate: float | None,
    workers: int,
) -> tuple[float | None, str]:
    """Wall time, and where the rate is from. By output tokens: writing takes far longer than reading a prompt."""
    if rate is not None:
        return documents / rate / workers, f"{rate:g} documents/s, as given"
    if history is not None:
        speed = history.output_tokens_per_s
        return documents * output / speed / workers, f"{speed:,.0f} output tokens/s, measured in the last job"
    speed = MEASURED_RATES.get(settings.engine_profile, 0.0)
    if speed:
        words = f"{speed:,.0f} output tokens/s, measured on a node of profile {settings.engine_profile}"
        return documents * output / speed / workers, words
    return None, "not known: no job of this model has ended yet; give --rate, or --profile of a node that was measured"
