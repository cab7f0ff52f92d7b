"""What structured output costs: the same documents free, through xgrammar, and through the decoder, in one engine.

    python -m ops.bench.structured CORPUS --model-path FOLDER [--documents 4000] [--ways decoder,free,xgrammar] \\
        [--profile 2048] [--out FILE]

decoder   the product's way for label schemas of its subset
free      no schema; each document as many tokens as its label took in the first way measured
xgrammar  the same label schema through vLLM's grammar backend
compact   the same without the blanks behind commas and colons that older vLLMs write there, for comparing labels
2 x max_num_seqs requests are in flight, at temperature 0. Each way begins with an empty prefix cache and labels 256
other documents first, unmeasured. A way that is named again is run again: the host's pace varies. Prints the table of
ops/BENCHMARKS.md, and how often the labels of two runs agree; ``--profile`` then runs every way once more over that
many documents, and says where the core's time goes in a step (needs py-spy).
"""

import argparse
import asyncio
import json
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from functools import cache
from itertools import combinations
from pathlib import Path
from statistics import mean
from typing import Any

from ops.bench.lanes import WARM_UP, Counter, documents
from ops.bench.profile import Account, Profile
from ops.bench.sampling import Sampler
from schemas.label_spec import LabelSpec, load_label_spec
from schemas.settings import load_settings
from schemas.user_turn import UserTurn
from worker.check import LabelCheck
from worker.engine.base import Generation, Request
from worker.engine.vllm import VllmEngine
from worker.row import RowInFlight, RowRules

WAYS = ("decoder", "free", "xgrammar", "compact")

Generate = Callable[[int], Awaitable[Generation]]


@dataclass
class Figures:
    """One way's figures."""

    documents: int
    seconds: float
    output_tokens: int
    steps: int
    ok: int
    truncated: int
    invalid: int
    gpu_utilization_pct: float | None
    account: dict[str, float] | None = None  #: milliseconds a step

    @property
    def documents_per_s(self) -> float:
        return self.documents / self.seconds


class Bench:
    """One engine and the prompts of a corpus."""

    def __init__(self, engine: VllmEngine, spec: LabelSpec, records: list[dict[str, Any]], warm_up: int) -> None:
        self._engine, self._spec, self._warm_up = engine, spec, warm_up
        rules = RowRules(spec, LabelCheck(spec), engine.info.max_model_len, 1, 0)
        turn = UserTurn(spec)
        texts = [turn.render(str(record["id"]), record["text"], record) for record in records]
        prompts = engine.encode(spec.system_prompt, texts)
        self._requests = [RowInFlight(rules, number, prompt).request() for number, prompt in enumerate(prompts)]
        #: Output tokens of each document in the first way.
        self._tokens: list[int] = []
        #: Outputs of the last run.
        self.texts: list[str] = []

    def run(self, way: str, count: int, profile: bool = False) -> Figures:
        """Measure one way over the first ``count`` documents."""
        generate: Generate = {
            "decoder": self._decoder,
            "free": self._free,
            "xgrammar": self._xgrammar,
            "compact": self._compact,
        }[way]
        self._engine.run(self._engine.llm.reset_prefix_cache())
        total = len(self._requests)
        self._feed(generate, range(total - self._warm_up, total))
        steps, account = self._steps(), None
        with Sampler(os.getpid()) as usage:
            started = time.monotonic()
            if profile:
                with Profile() as account:
                    generations = self._feed(generate, range(count))
            else:
                generations = self._feed(generate, range(count))
            seconds = time.monotonic() - started
        steps = self._steps() - steps
        counter = Counter(self._spec)
        for generation in generations:
            counter.take(generation.text, generation.finish_reason, generation.output_tokens)
        if not self._tokens:
            self._tokens = [generation.output_tokens for generation in generations]
        self.texts = [generation.text for generation in generations]
        return Figures(
            documents=count,
            seconds=round(seconds, 2),
            output_tokens=counter.output_tokens,
            steps=steps,
            gpu_utilization_pct=usage.as_json()["gpu_utilization_pct"],
            account=_a_step(account, 1000 * seconds / steps),
            **counter.counts,
        )

    def _feed(self, generate: Generate, numbers: range) -> list[Generation]:
        async def feed() -> list[Generation]:
            gate = asyncio.Semaphore(2 * self._engine.info.max_num_seqs)

            async def one(number: int) -> Generation:
                async with gate:
                    return await generate(number)

            return await asyncio.gather(*(one(number) for number in numbers))

        return self._engine.run(feed())

    async def _decoder(self, number: int) -> Generation:
        return await self._engine.generate(self._requests[number])

    async def _free(self, number: int) -> Generation:
        # What warms up may take as many as any.
        tokens = self._tokens[number % len(self._tokens)]
        return await self._plain(self._requests[number], max_tokens=tokens, ignore_eos=True)

    async def _xgrammar(self, number: int) -> Generation:
        from vllm.sampling_params import StructuredOutputsParams  # noqa: PLC0415

        request = self._requests[number]
        schema = StructuredOutputsParams(json=request.schema_text)
        return await self._plain(request, max_tokens=request.max_tokens, structured_outputs=schema)

    async def _compact(self, number: int) -> Generation:
        from vllm.sampling_params import StructuredOutputsParams  # noqa: PLC0415

        request = self._requests[number]
        grammar = StructuredOutputsParams(grammar=_compact_grammar(request.schema_text))
        return await self._plain(request, max_tokens=request.max_tokens, structured_outputs=grammar)

    async def _plain(self, request: Request, **parameters: Any) -> Generation:
        from vllm.inputs.engine import tokens_input  # noqa: PLC0415
        from vllm.sampling_params import RequestOutputKind, SamplingParams  # noqa: PLC0415

        sampling = SamplingParams(temperature=0, output_kind=RequestOutputKind.FINAL_ONLY, **parameters)
        final = None
        prompt = tokens_input(list(request.prompt.tokens))
        async for output in self._engine.llm.generate(prompt, sampling, request_id=f"bench-{time.monotonic_ns()}"):
            final = output
        assert final is not None
        done = final.outputs[0]
        return Generation(done.text, str(done.finish_reason), request.prompt.size, len(done.token_ids), 0)

    @staticmethod
    def _steps() -> int:
        """Steps of the engine so far, by its own metrics."""
        from prometheus_client import REGISTRY  # noqa: PLC0415

        names = ("vllm:iteration_tokens_total_count",)
        samples = (sample for metric in REGISTRY.collect() for sample in metric.samples)
        return int(sum(sample.value for sample in samples if sample.name in names))


@cache
def _compact_grammar(schema_text: str) -> str:
    import xgrammar  # noqa: PLC0415

    return str(xgrammar.Grammar.from_json_schema(schema_text, any_whitespace=False, separators=(",", ":")))


def _a_step(account: Account | None, ms_a_step: float) -> dict[str, float] | None:
    return None if account is None else {part: round(ms_a_step * share, 2) for part, share in account.shares().items()}


def table(results: dict[str, Figures]) -> str:
    """The figures as a Markdown table; beside free generation, the mean of its runs."""
    free = [figures.documents_per_s for run, figures in results.items() if run.split()[0] == "free"]
    lines = [
        "| way | documents/s | to free | output tokens/s | steps | ms a step | ok | invalid | cut | GPU busy |",
        "|---" * 10 + "|",
    ]
    for way, figures in results.items():
        share = f"{figures.documents_per_s / mean(free):.2f}" if free else ""
        busy = f"{figures.gpu_utilization_pct} %" if figures.gpu_utilization_pct is not None else ""
        a_step = f"{1000 * figures.seconds / figures.steps:.1f}" if figures.steps else ""
        lines.append(
            f"| {way} | {figures.documents_per_s:.1f} | {share} | {figures.output_tokens / figures.seconds:,.0f} | "
            f"{figures.steps:,} | {a_step} | {figures.ok:,} | {figures.invalid} | {figures.truncated} | {busy} |"
        )
    return "\n".join(lines)


def profile_table(results: dict[str, Figures]) -> str:
    """Milliseconds a step by part, one column a way."""
    accounts = {way: figures.account for way, figures in results.items() if figures.account}
    parts = dict.fromkeys(part for account in accounts.values() for part in account)
    lines = ["| ms a step | " + " | ".join(accounts) + " |", "|---" * (len(accounts) + 1) + "|"]
    for part in parts:
        lines.append(f"| {part} | " + " | ".join(str(account.get(part, 0.0)) for account in accounts.values()) + " |")
    return "\n".join(lines)


def agreement(texts: dict[str, list[str]], fields: list[str]) -> str:
    """How often the labels of two runs say the same on fields with listed values: a line for each pair of runs."""
    lines = []
    for one_run, other_run in combinations(texts, 2):
        pairs = []
        for one, other in zip(texts[one_run], texts[other_run], strict=True):
            try:
                pairs.append((json.loads(one), json.loads(other), one == other))
            except ValueError:  # cut
                continue
        same = sum(all(one.get(field) == other.get(field) for field in fields) for one, other, _ in pairs)
        equal = sum(identical for _, _, identical in pairs)
        lines.append(f"{one_run} and {other_run}: of {len(pairs)} labels {same} agree, {equal} are the same text")
    return "\n".join(lines)


def _closed_fields(spec: LabelSpec) -> list[str]:
    fields: dict[str, Any] = json.loads(spec.schema_text)["properties"]
    return [name for name, field in fields.items() if "enum" in field or field.get("type") == "boolean"]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--model-path", required=True)
    parser.add_argument("--documents", type=int, default=4000)
    parser.add_argument("--warm-up", type=int, default=WARM_UP, help="documents labelled first, unmeasured")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--schema", default="packages")
    parser.add_argument("--profile", type=int, default=0, help="documents of a profiled run of each way")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    ways = arguments.ways.split(",")
    if ways[0] == "free" or not set(ways) <= set(WAYS):
        parser.error(f"--ways: of {', '.join(WAYS)}, and free not first: it makes as many tokens as the first")
    spec, _ = load_label_spec(arguments.schema)
    engine = VllmEngine(load_settings().model_copy(update={"model_path": arguments.model_path}))
    engine.start()
    try:
        records = documents(arguments.corpus, arguments.documents + arguments.warm_up)
        bench = Bench(engine, spec, records, arguments.warm_up)
        results: dict[str, Figures] = {}
        texts: dict[str, list[str]] = {}
        for number, way in enumerate(ways):
            earlier = ways[:number].count(way)
            name = f"{way} {earlier + 1}" if earlier else way
            results[name] = bench.run(way, arguments.documents)
            if way != "free":
                texts[name] = bench.texts
            print(table(results), flush=True)
        print(agreement(texts, _closed_fields(spec)), flush=True)
        for way in dict.fromkeys(ways) if arguments.profile else ():
            results[way].account = bench.run(way, arguments.profile, profile=True).account
    finally:
        engine.close()
    if arguments.profile:
        print(profile_table(results))
    if arguments.out:
        arguments.out.write_text(json.dumps({way: asdict(figures) for way, figures in results.items()}, indent=1))


if __name__ == "__main__":
    main()
