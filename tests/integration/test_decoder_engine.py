"""The decoder in vLLM itself, with the demo's model: chunked prompts, preemptions, batches of all kinds.

On the CPU; on a machine with a GPU, there, under both of vLLM's model runners. With two GPUs, also split over them.
"""

import importlib.util
import json
import logging
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from schemas.settings import Settings
from worker.engine.base import Generation, Request
from worker.engine.vllm import VllmEngine

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
    pytest.mark.timeout(600),
]
LABEL: dict[str, Any] = {
    "type": "object",
    "properties": {
        "kind": {"type": "string", "enum": ["tool", "library", "日本語"]},
        "good": {"type": "boolean"},
        "note": {"type": "string", "minLength": 2, "maxLength": 60},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 8}, "maxItems": 2},
        "score": {"type": "integer", "minimum": 0, "maximum": 100},
    },
    "required": ["kind", "good", "note", "tags", "score"],
    "additionalProperties": False,
}
#: The decoder has no patterns.
PATTERN: dict[str, Any] = {
    "type": "object",
    "properties": {"code": {"type": "string", "pattern": "^[A-C]{3}$"}},
    "required": ["code"],
    "additionalProperties": False,
}
TEXTS = [
    f"Package {n}: a small program that prints the number {n * 37} in many ways. " * (1 + n % 4) for n in range(12)
]


def _gpus() -> int:
    if importlib.util.find_spec("torch") is None:
        return 0
    import torch

    return torch.cuda.device_count()


GPUS = _gpus()
#: A small part of any GPU.
ON_GPU = {"enforce_eager": True, "block_size": 32, "gpu_memory_utilization": 0.05, "kv_cache_memory_bytes": 2**28}


@pytest.fixture(scope="module")
def model() -> Path:
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("vLLM is missing: make setup ENGINE=vllm")
    from ops.demo_model import cached_folder

    folder = cached_folder()
    if not folder.is_dir():
        pytest.skip("the demo's model is not converted: python -m ops.demo_model")
    return folder


# On a GPU under the older model runner, then the newer one.
@pytest.fixture(scope="module", params=["0", "1"] if GPUS else [None])
def engine(model: Path, request: pytest.FixtureRequest) -> Iterator[VllmEngine]:
    made = VllmEngine(
        Settings(
            engine="vllm",
            engine_profile="default" if GPUS else "cpu",
            model_path=str(model),
            # Prompts are read in several steps, and the cache holds too few tokens for all that run.
            max_num_batched_tokens=64,
            max_num_seqs=8,
            max_model_len=512,
            engine_args={"num_gpu_blocks_override": 34, "enable_chunked_prefill": True} | (ON_GPU if GPUS else {}),
        )
    )
    with pytest.MonkeyPatch.context() as patch:
        if request.param is not None:
            patch.setenv("VLLM_USE_V2_MODEL_RUNNER", request.param)
        made.start()
        yield made
        made.close()


def ask(engine: VllmEngine, text: str, schema: dict[str, Any] | None, tokens: int) -> Future[Generation]:
    prompt = engine.encode("Describe the package as JSON.", [text])[0]
    schema_text = None if schema is None else json.dumps(schema, ensure_ascii=False)
    return engine.submit(Request(prompt, schema_text, tokens, temperature=0, top_p=1, seed=0))


def test_labels_are_whole_in_batches_of_all_kinds(engine: VllmEngine, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    assert engine.info.structured_backend == "decoder, else xgrammar"
    labels = [ask(engine, text, LABEL, 200) for text in TEXTS]
    others = [ask(engine, text, PATTERN, 40) for text in TEXTS[:4]]
    free = [ask(engine, text, None, 30) for text in TEXTS[:4]]
    # The fewest tokens that a label takes, and some more: it closes in time.
    tight = [ask(engine, text, LABEL, 45 + n) for n, text in enumerate(TEXTS)]
    for future in (*labels, *tight):
        done = future.result(timeout=400)
        assert done.finish_reason == "stop"
        Draft202012Validator(LABEL).validate(json.loads(done.text))
    for future in others:
        Draft202012Validator(PATTERN).validate(json.loads(future.result(timeout=400).text))
    assert {future.result(timeout=400).finish_reason for future in free} <= {"stop", "length"}


def test_a_preempted_label_goes_on_where_it_was(engine: VllmEngine) -> None:
    from prometheus_client import REGISTRY

    def preemptions() -> float:
        samples = (sample for metric in REGISTRY.collect() for sample in metric.samples)
        return sum(sample.value for sample in samples if sample.name == "vllm:num_preemptions_total")

    before = preemptions()
    # A long answer each, so that eight of them outgrow the cache.
    note = {"type": "string", "minLength": 400, "maxLength": 450}
    long = {**LABEL, "properties": {**LABEL["properties"], "note": note}}
    for future in [ask(engine, text, long, 300) for text in TEXTS[:8]]:
        done = future.result(timeout=500)
        assert done.finish_reason == "stop"
        Draft202012Validator(long).validate(json.loads(done.text))
    assert preemptions() > before


@pytest.mark.skipif(GPUS < 2, reason="fewer than two GPUs")
def test_the_workers_of_a_split_model_mask_alike(model: Path, tmp_path: Path) -> None:
    from ops.bench.shapes import write_shape

    engine = VllmEngine(
        Settings(
            engine="vllm",
            model_path=str(write_shape("dense-8b", model, tmp_path / "dense-8b")),
            max_num_seqs=16,
            max_model_len=1024,
            tensor_parallel_size=2,
            # NCCL alone: it works however the GPUs are linked.
            engine_args={"load_format": "dummy", "enforce_eager": True, "disable_custom_all_reduce": True},
        )
    )
    engine.start()
    try:
        assert engine.info.structured_backend == "decoder, else xgrammar"
        for future in [ask(engine, text, LABEL, 45 + n) for n, text in enumerate(4 * TEXTS)]:
            done = future.result(timeout=400)
            assert done.finish_reason == "stop"
            Draft202012Validator(LABEL).validate(json.loads(done.text))
    finally:
        engine.close()
