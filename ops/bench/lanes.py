"""Feeding lanes side by side: what the raw engine can, and what the product makes of it.

    python -m ops.bench.lanes CORPUS --model-path FOLDER [--documents 4000] [--lanes A,B,C64,C256,D] [--out FILE]

Lanes, all with the same engine arguments, prompts, label schema and token budget:
A     one ``LLM.chat`` call with every prompt
B     AsyncLLM fed by a semaphore of 2 x max_num_seqs, nothing else
C64   ``LLM.chat`` in blocking chunks of 64; C256 in chunks of 256
D     the product: Celery over Valkey, `worker start`, Postgres, all on this machine
Each first labels 256 other documents, unmeasured: compiled kernels, compiled grammar, system prompt in the cache.
Prints the table of ops/BENCHMARKS.md; ``--out`` keeps the figures as JSON, and adds to those that are there.
"""

import argparse
import asyncio
import gzip
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from ops.bench.product import run_product
from ops.bench.sampling import Sampler
from schemas.label_spec import LabelSpec, load_label_spec
from schemas.settings import Settings, load_settings
from schemas.user_turn import UserTurn
from worker.check import LabelCheck
from worker.engine.base import Generation
from worker.engine.vllm import VllmEngine, engine_arguments
from worker.row import RowInFlight, RowRules

#: Documents labelled before the clock starts.
WARM_UP = 256
#: Lanes that share a process, because they share an engine; each process starts its engine anew.
PROCESSES = (("A", "C64", "C256"), ("B",), ("D",))


def documents(corpus: Path, count: int) -> list[dict[str, Any]]:
    """The first ``count`` records of a JSONL file, gzipped or not."""

    def lines() -> Iterator[bytes]:
        with gzip.open(corpus) if corpus.suffix == ".gz" else corpus.open("rb") as file:
            yield from file

    return [json.loads(line) for line in islice(lines(), count)]


class Counter:
    """Counts outcomes by the product's own check."""

    def __init__(self, spec: LabelSpec) -> None:
        self._check = LabelCheck(spec)
        self.counts = {"ok": 0, "truncated": 0, "invalid": 0}
        self.output_tokens = 0

    def take(self, text: str, finish_reason: str, output_tokens: int) -> None:
        """Count one output."""
        self.output_tokens += output_tokens
        try:
            self._check.label(text)
            outcome = "ok"
        except Exception:
            outcome = "truncated" if finish_reason == "length" else "invalid"
        self.counts[outcome] += 1


def run_llm(
    lanes: list[str], records: list[dict[str, Any]], warm_up: int, spec: LabelSpec, settings: Settings
) -> dict[str, Any]:
    """Lanes A and C, on one ``vllm.LLM``."""
    from vllm import LLM, SamplingParams  # noqa: PLC0415
    from vllm.sampling_params import StructuredOutputsParams  # noqa: PLC0415

    # The one argument that only the asynchronous engine has.
    llm = LLM(**{name: value for name, value in engine_arguments(settings).items() if name != "enable_log_requests"})
    turn = UserTurn(spec)
    chats = [
        [
            {"role": "system", "content": spec.system_prompt},
            {"role": "user", "content": turn.render(str(record["id"]), record["text"], record)},
        ]
        for record in records
    ]
    room = min(spec.max_output_tokens, llm.llm_engine.vllm_config.model_config.max_model_len // 2)
    sampling = SamplingParams(
        temperature=0, max_tokens=room, structured_outputs=StructuredOutputsParams(json=spec.schema_text)
    )

    def label(part: list[Any]) -> list[Any]:
        return list(llm.chat(part, sampling, use_tqdm=False))

    label(chats[-warm_up:])
    measured = chats[:-warm_up]
    results = {}
    for lane in lanes:
        size = int(lane[1:] or len(measured))
        counter = Counter(spec)
        with Sampler(os.getpid()) as usage:
            started = time.monotonic()
            outputs = [
                output for first in range(0, len(measured), size) for output in label(measured[first : first + size])
            ]
            seconds = time.monotonic() - started
        for output in outputs:
            done = output.outputs[0]
            counter.take(done.text, str(done.finish_reason), len(done.token_ids))
        results[lane] = result(len(measured), seconds, counter.output_tokens, counter.counts, usage.as_json())
    return results


async def _feed(engine: VllmEngine, rows: list[RowInFlight], in_flight: int) -> list[Generation]:
    gate = asyncio.Semaphore(in_flight)

    async def one(row: RowInFlight) -> Generation:
        async with gate:
            return await engine.generate(row.request())

    return await asyncio.gather(*(one(row) for row in rows))


def run_async(records: list[dict[str, Any]], warm_up: int, spec: LabelSpec, settings: Settings) -> dict[str, Any]:
    """Lane B."""
    engine = VllmEngine(settings)
    engine.start()
    rules = RowRules(spec, LabelCheck(spec), engine.info.max_model_len, settings.row_max_tries, settings.seed)
    turn = UserTurn(spec)
    prompts = engine.encode(
        spec.system_prompt, [turn.render(str(record["id"]), record["text"], record) for record in records]
    )
    rows = [RowInFlight(rules, number, prompt) for number, prompt in enumerate(prompts)]
    in_flight = 2 * engine.info.max_num_seqs
    engine.run(_feed(engine, rows[-warm_up:], in_flight))
    counter = Counter(spec)
    with Sampler(os.getpid()) as usage:
        started = time.monotonic()
        generations = engine.run(_feed(engine, rows[:-warm_up], in_flight))
        seconds = time.monotonic() - started
    for generation in generations:
        counter.take(generation.text, generation.finish_reason, generation.output_tokens)
    engine.close()
    return {"B": result(len(rows) - warm_up, seconds, counter.output_tokens, counter.counts, usage.as_json())}


def result(
    count: int, seconds: float, tokens: int, counts: dict[str, int], usage: dict[str, float | None]
) -> dict[str, Any]:
    """One lane's figures."""
    return {
        "documents": count,
        "seconds": round(seconds, 2),
        "documents_per_s": round(count / seconds, 1),
        "output_tokens_per_s": round(tokens / seconds),
        **counts,
        **usage,
        "front_end_ms_a_document": round(1000 * (usage["front_end_cpu_s"] or 0) / count, 2),
    }


def table(results: dict[str, dict[str, Any]]) -> str:
    """The figures as a Markdown table, each lane beside the raw engine (B)."""
    base = results.get("B", {}).get("documents_per_s")
    columns: dict[str, Callable[[dict[str, Any]], str]] = {
        "documents/s": lambda lane: str(lane["documents_per_s"]),
        "to B": lambda lane: f"{lane['documents_per_s'] / base:.2f}" if base else "",
        "output tokens/s": lambda lane: f"{lane['output_tokens_per_s']:,}",
        "ok": lambda lane: f"{lane['ok']:,}",
        "invalid": lambda lane: str(lane["invalid"]),
        "truncated": lambda lane: str(lane["truncated"]),
        "last 1 % of the run": lambda lane: f"{lane['last_percent_share']:.2%}" if "last_percent_share" in lane else "",
        "front-end CPU a document": lambda lane: f"{lane['front_end_ms_a_document']} ms",
        "GPU busy": lambda lane: f"{lane['gpu_utilization_pct']} %" if lane["gpu_utilization_pct"] is not None else "",
        "peak host memory": lambda lane: f"{lane['peak_rss_gib']} GiB",
    }
    lines = ["| lane | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for name in sorted(results):
        lines.append(f"| {name} | " + " | ".join(show(results[name]) for show in columns.values()) + " |")
    return "\n".join(lines)


def main() -> None:
    """Run each group of lanes in a process of its own, so that each has the whole GPU."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--model-path", required=True)
    parser.add_argument("--documents", type=int, default=4000)
    parser.add_argument("--warm-up", type=int, default=WARM_UP, help="documents labelled first, unmeasured")
    parser.add_argument("--lanes", default="A,B,C64,C256,D")
    parser.add_argument("--schema", default="packages")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    lanes = arguments.lanes.split(",")
    if arguments.child:
        spec, _ = load_label_spec(arguments.schema)
        settings = load_settings().model_copy(update={"model_path": arguments.model_path})
        records = documents(arguments.corpus, arguments.documents + arguments.warm_up)
        if lanes == ["B"]:
            results = run_async(records, arguments.warm_up, spec, settings)
        elif lanes == ["D"]:
            results = run_product(records, arguments.warm_up, arguments.schema, settings)
        else:
            results = run_llm(lanes, records, arguments.warm_up, spec, settings)
        arguments.out.write_text(json.dumps(results))
        return
    # Lanes that were run before on the same machine stay in the table: a lease may be shorter than all of them.
    results = json.loads(arguments.out.read_text()) if arguments.out and arguments.out.exists() else {}
    for group in PROCESSES:
        chosen = [lane for lane in group if lane in lanes]
        if not chosen:
            continue
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "result.json"
            command = [sys.executable, "-m", "ops.bench.lanes", str(arguments.corpus), "--child", "--out", str(out)]
            command += ["--model-path", arguments.model_path, "--documents", str(arguments.documents)]
            command += ["--warm-up", str(arguments.warm_up)]
            command += ["--lanes", ",".join(chosen), "--schema", arguments.schema]
            ended = subprocess.run(command, check=False)
            if ended.returncode:
                print(f"lanes {chosen} failed with exit code {ended.returncode}", file=sys.stderr)
                continue
            results |= json.loads(out.read_text())
        print(table(results), flush=True)
        if arguments.out:
            arguments.out.write_text(json.dumps(results, indent=1))
    sys.exit(0 if set(lanes) <= results.keys() else 1)


if __name__ == "__main__":
    main()
