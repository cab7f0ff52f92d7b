"""Engine defaults by kind of node, each with its reason. A setting given by the user wins over its profile's."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Profile:
    """Engine arguments, and environment variables that must be there before the engine is imported."""

    arguments: Mapping[str, Any]
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
    "trust_remote_code": False,
}

PROFILES: dict[str, Profile] = {
    "default": Profile({"gpu_memory_utilization": 0.90}),
    "cpu": Profile(
        {
            # bfloat16 falls back to slow kernels on processors without AMX or AVX512-BF16.
            "dtype": "float32",
            # The default of the CPU build gave no prefix-cache hits on short prompts; 16 is refused.
            "block_size": 32,
            # Compiling did not finish in three minutes on two cores.
            "enforce_eager": True,
            # A small model on a CPU: enough for an abstract, and a prompt stays under a second.
            "max_model_len": 4096,
            # More sequences a step only add latency: two cores are busy with a few.
            "max_num_seqs": 16,
            "max_num_batched_tokens": 4096,
        },
        {
            # GiB for the KV cache. Unset, the engine asks for nearly the whole memory and refuses to start with less.
            "VLLM_CPU_KVCACHE_SPACE": "2",
        },
    ),
}
