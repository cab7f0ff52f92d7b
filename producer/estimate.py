"""What a job will take, before it runs: tokens, GPU hours and money, from a sample and from what was measured."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import ceil, sqrt
from statistics import fmean, pstdev
from typing import Any

from producer.standing import labelled_in_run
from producer.tokens import TEMPLATE_TOKENS, TokenCounter, context_tokens, room_warning, token_counter
from schemas.budget import MAX_PARTS, MIN_DOCUMENT_TOKENS
from schemas.database import Connection, queries
from schemas.label_spec import LabelSpec
from schemas.outcomes import OverLong, RowFinal
from schemas.settings import Settings
from schemas.user_turn import UserTurn

#: Documents that are tokenized: their mean is then known to a few percent, in well under a second. A corpus of no more
#: is counted whole.
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
#: Output tokens a second of one node, by its profile, and the models with which that was measured, in
#: `ops/BENCHMARKS.md` and on two cores. Another model's may be several times less or more.
MEASURED_RATES = {"h200": (5500.0, "SmolLM2-135M and an 8B shape"), "cpu": (70.0, "SmolLM2-135M")}


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
class _Size:
    """What a document takes: tokens as it is, tokens that the over-long policy leaves of it, and the labels written."""

    whole: int
    kept: int
    labels: int


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
    warnings: list[str]  #: what a submitter must know before the job, in words

    def as_json(self) -> dict[str, Any]:
        """Everything by name."""
        return asdict(self)


def history_of(connection: Connection, model: str, label_spec_id: int | None) -> History | None:
    """What the last finished jobs of a model took; those of the label spec in question before others."""
    jobs = list(queries.last_jobs(connection, model=model, batch=LAST_JOBS))
    jobs.sort(key=lambda job: job["label_spec_id"] != label_spec_id)
    for job in jobs:
        rows = queries.token_figures(connection, job_id=job["id"], batch=ROWS)
        labelled = labelled_in_run(connection, job["id"], job["final_counts"])
        if labelled > 0 and rows["rows"] and rows["output_tokens"]:
            return History(
                prompt_tokens=rows["prompt_tokens"],
                output_tokens=rows["output_tokens"],
                output_spread=rows["output_spread"] / sqrt(rows["rows"]),
                cached_share=rows["cached_tokens"] / rows["prompt_tokens"],
                chars_a_token=queries.chars_a_token(
                    connection, job_id=job["id"], batch=ROWS, template_tokens=TEMPLATE_TOKENS
                ),
                output_tokens_per_s=labelled * rows["output_tokens"] / job["running_s"] / rows["workers"],
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
    profile: str | None = None,
) -> Forecast:
    """Forecast a job.

    :param sample: some of its documents, with ``external_id``, ``text`` and ``meta``.
    :param context: tokens that prompt and output may have together, if an engine told; else what the settings say.
    :param workers: GPUs that will work on it. :param rate: documents a second of one of them, if the user knows it.
    :param profile: kind of node that was asked about: its rate then counts, not that of the last jobs.
    """
    counter = token_counter(settings, history.chars_a_token if history else None)
    limit = context or context_tokens(settings)
    room = None if limit is None else limit - spec.reserved_output_tokens
    shared, sizes = _sizes(sample, spec, counter, room)
    kept = [size.kept for size in sizes]
    mean = fmean(kept)
    labels = fmean(size.labels for size in sizes)
    output, output_spread, output_basis = _output(spec, history)
    seconds, rate_basis = _seconds(documents, labels * output, settings, history, rate, workers, profile)
    # Of a corpus that was drawn whole nothing is left to chance.
    drawn = sqrt((documents - len(sizes)) / (documents - 1)) if documents > len(sizes) else 0.0
    counted = f"all {documents:,} documents" if documents <= len(sizes) else f"{len(sizes):,} documents drawn by chance"
    hours = None if seconds is None else seconds * workers / 3600
    price = settings.gpu_hour_price
    over_long_share = 0.0 if room is None else sum(size.whole > room for size in sizes) / len(sizes)
    warning = room_warning(limit, spec, shared, over_long_share)
    return Forecast(
        documents=documents,
        prompt_tokens=round(documents * mean),
        prompt_spread=drawn * SIGMAS * pstdev(kept) / sqrt(len(kept)) / mean if mean else 0.0,
        output_tokens=round(documents * labels * output),
        output_spread=output_spread,
        over_long_share=None if room is None else over_long_share,
        cached_share=history.cached_share if history and history.same_spec else labels * shared / mean if mean else 0.0,
        seconds=seconds,
        gpu_hours=hours,
        cost=None if hours is None or price is None else hours * price,
        workers=workers,
        basis={"prompt tokens": f"{counter.basis}, {counted}", "output tokens": output_basis, "rate": rate_basis},
        warnings=[warning] if warning else [],
    )


def forecast_corpus(
    connection: Connection,
    corpus_id: int,
    documents: int,
    spec: LabelSpec,
    spec_id: int,
    settings: Settings,
    model: str,
) -> Forecast:
    """Forecast a job over a corpus that is loaded."""
    if documents <= SAMPLE:
        found = list(queries.first_documents(connection, corpus_id=corpus_id, batch=SAMPLE))
    else:
        last = queries.last_ordinal(connection, corpus_id=corpus_id)
        chance = random.Random(corpus_id)
        ordinals = sorted({chance.randint(0, last) for _ in range(SAMPLE)})
        found = list(queries.sample_documents(connection, corpus_id=corpus_id, ordinals=ordinals))
    return forecast(
        found,
        documents,
        spec,
        settings,
        history=history_of(connection, model, spec_id),
        context=queries.last_context(connection, model=model),
    )


def _sizes(
    sample: Sequence[Mapping[str, Any]], spec: LabelSpec, counter: TokenCounter, room: int | None
) -> tuple[int, list[_Size]]:
    """Tokens that every prompt has in common, and what each document takes where prompts have ``room`` tokens."""
    shared = counter.count([spec.system_prompt])[0] + TEMPLATE_TOKENS
    turn = UserTurn(spec)
    turns, texts = [], []
    for document in sample:
        try:
            turns.append(turn.render(document["external_id"], document["text"], document["meta"]))
            texts.append(document["text"])
        except RowFinal:  # its row says so; it costs nothing
            pass
    sizes = [_Size(0, 0, 0)] * (len(sample) - len(turns))
    for text, tokens in zip(texts, counter.count(turns), strict=True):
        whole = shared + tokens
        if room is None or whole <= room:
            sizes.append(_Size(whole, whole, 1))
        else:
            sizes.append(_cut(whole, counter.count([text])[0], spec.over_long, room))
    return shared, sizes


def _cut(whole: int, text: int, policy: OverLong, room: int) -> _Size:
    """What workers make of a document that does not fit: see `worker.over_long`, whose margins are left out here."""
    around = whole - text
    if policy is OverLong.REJECT or room - around < MIN_DOCUMENT_TOKENS:
        return _Size(whole, 0, 0)
    if policy is not OverLong.SPLIT:
        return _Size(whole, room, 1)
    parts = ceil(text / (room - around))
    return _Size(whole, text + parts * around, parts) if parts <= MAX_PARTS else _Size(whole, 0, 0)


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
    profile: str | None,
) -> tuple[float | None, str]:
    """Wall time, and where the rate is from. By output tokens: writing takes far longer than reading a prompt."""
    if rate is not None:
        return documents / rate / workers, f"{rate:g} documents/s, as given"
    if history is not None and profile is None:
        speed = history.output_tokens_per_s
        return documents * output / speed / workers, f"{speed:,.0f} output tokens/s, measured in the last job"
    node = profile or settings.engine_profile
    if node in MEASURED_RATES:
        speed, models = MEASURED_RATES[node]
        words = f"{speed:,.0f} output tokens/s, measured on profile {node} with {models}: other models differ"
        return documents * output / speed / workers, words
    why = "no job of this model has ended yet" if profile is None else f"none was measured on profile {profile}"
    return None, f"not known: {why}; give --rate, or --profile of a node that was measured: {', '.join(MEASURED_RATES)}"
