"""Engine defaults by kind of node, each with its reason. A setting given by the user wins over its profile's."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from schemas.settings import Settings


@dataclass(frozen=True)
class Profile:
    """What a kind of node needs, in one word."""

    node: str  #: the node in words, for ``worker start --help``
    arguments: Mapping[str, Any]
    #: Variables that must be there before the engine is imported.
    environment: Mapping[str, str] = field(default_factory=dict)


#: Whatever the node.
COMMON: dict[str, Any] = {
    # vLLM's own default depends on how it is started (128 in a library) whatever the GPU.
    "max_num_seqs": 256,
    "max_num_batched_tokens": 8192,
    # The system prompt is the same for every document of a job.
    "enable_prefix_caching": True,
    # White space between tokens is legal JSON: models have looped in it until the limit.
    "structured_outputs_config": {"backend": "xgrammar", "disable_any_whitespace": True},
    "enable_log_requests": False,
}

#: Tokens of a step that have a CUDA graph: coarser than vLLM's own steps of 16, which would take long to capture.
_GRAPH_SIZES = [1, 2, 4, 8, 16, *range(32, 257, 32), *range(320, 1025, 64), *range(1152, 1537, 128), 1792, 2048]

PROFILES: dict[str, Profile] = {
    "default": Profile(
        "any one GPU",
        {
            # vLLM's own 0.92 leaves little on a GPU that also drives a display or a second small process.
            "gpu_memory_utilization": 0.90,
        },
    ),
    "h200": Profile(
        "H200 (141 GB)",
        {
            # 14 GB stay free for compiled graphs and the peaks of a step of 16,384 tokens.
            "gpu_memory_utilization": 0.90,
            # vLLM's own choice for this class of GPU: a step of 8,192 leaves its matrix units waiting.
            "max_num_batched_tokens": 16384,
            # Nearly every step of a job reads prompts beside 250 labels, 600 to 900 tokens in all. vLLM's graphs end at
            # 512, and a small model then waits for its launches: with these, 1.4 times the documents.
            "compilation_config": {"cudagraph_capture_sizes": _GRAPH_SIZES},
            # kv_cache_dtype stays the model's: fp8 would be fast here (FlashAttention 3 reads it), but 141 GB hold
            # the KV cache of 256 documents in full, and labels should not pay for memory that is there.
        },
    ),
    "h100": Profile(
        "H100 (80 GB)",
        {
            "gpu_memory_utilization": 0.90,
            "max_num_batched_tokens": 16384,  # as on an H200: the compute is the same
            # For a model of 30B or more, GLEANER_KV_CACHE_DTYPE=fp8 makes room for 256 sequences: native on Hopper.
        },
    ),
    "a100-80g": Profile(
        "A100 (80 GB)",
        {
            "gpu_memory_utilization": 0.90,
            # More reduces throughput on an A100 (vllm PR #17885).
            "max_num_batched_tokens": 8192,
            # No native FP8 matrix units: weights in FP8 save memory and no time (they are widened in each step), and
            # an fp8 KV cache drops FlashAttention. So neither is set here; AWQ and GPTQ run well.
        },
    ),
    "a100-40g": Profile(
        "A100 (40 GB)",
        {
            "gpu_memory_utilization": 0.90,
            # The peaks of a step are paid out of a KV cache of half the size: half the tokens of the 80 GB model.
            "max_num_batched_tokens": 4096,
        },
    ),
    "dgx-spark": Profile(
        "DGX Spark (GB10, 128 GB unified)",
        {
            # Memory is the host's too: at vLLM's own 0.92 the machine has wedged (vllm#46307, #56824). 0.85 is the
            # most that is known to hold, 0.80 leaves room for the system and Postgres.
            "gpu_memory_utilization": 0.80,
            # Prompts are read at about 2,800 tokens a second (35B, FP8): a step of 8,192 would hold up the running
            # sequences for three seconds.
            "max_num_batched_tokens": 4096,
            # Batching is what this node lives by: 34 tokens a second at one sequence, 284 at 256.
            "max_num_seqs": 256,
        },
    ),
    "cpu": Profile(
        "no GPU, vLLM's CPU build",
        {
            # bfloat16 falls back to slow kernels on processors without AMX or AVX512-BF16.
            "dtype": "float32",
            # The default of the CPU build gave no prefix-cache hits on short prompts; 16 is refused.
            "block_size": 32,
            # Compiling did not finish in three minutes on two cores.
            "enforce_eager": True,
            # More sequences a step only add latency: two cores are busy with a few.
            "max_num_seqs": 16,
            "max_num_batched_tokens": 4096,
        },
        environment={
            # GiB for the KV cache. Unset, the engine asks for nearly the whole memory and refuses to start with less.
            "VLLM_CPU_KVCACHE_SPACE": "2",
        },
    ),
}


def sequences_a_step(settings: Settings) -> int:
    """Sequences that the engine will work on at once: as set, else the profile's, else the common number."""
    if settings.engine == "openai":
        return settings.openai_concurrency
    profile = PROFILES[settings.engine_profile].arguments
    return int(settings.max_num_seqs or profile.get("max_num_seqs") or COMMON["max_num_seqs"])
