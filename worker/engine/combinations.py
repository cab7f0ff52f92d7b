"""Combinations of engine version, device and settings that are known to fail, refused at start by name.

Each was met by somebody: in a public issue, or in our own measurements. What fails at once with a clear message of the
engine's own is not in here, unless the message does not name the setting.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from schemas.errors import UsageError
from schemas.settings import Settings

#: Names that chat templates give to the switch for thinking.
_THINKING_SWITCHES = ("enable_thinking", "thinking")
#: Share of a DGX Spark's unified memory that is known to hold.
SPARK_MEMORY_SHARE = 0.85


class KnownBadCombination(UsageError):
    """Engine version, device and settings are together known to fail; the message names each with its remedy."""


@dataclass(frozen=True, slots=True)
class Node:
    """What a worker is about to start."""

    settings: Settings
    arguments: Mapping[str, Any]  #: the engine's, as they will be used
    version: str  #: of vLLM
    device: str  #: the GPU's name as the driver says it; empty if there is none


@dataclass(frozen=True, slots=True)
class Combination:
    """One known fault."""

    name: str
    why: str
    remedy: str
    source: str
    holds: Callable[[Node], bool]

    def __str__(self) -> str:
        return f"{self.name}: {self.why} ({self.source}). {self.remedy}"


def _version(node: Node) -> tuple[int, ...]:
    match = re.match(r"(\d+)\.(\d+)\.?(\d+)?", node.version)
    return tuple(int(part or 0) for part in match.groups()) if match else ()


def _structured(node: Node) -> Mapping[str, Any]:
    """vLLM's structured-output settings, whichever way they were given."""
    given = node.arguments.get("structured_outputs_config") or {}
    return given if isinstance(given, Mapping) else vars(given)


def _backend(node: Node) -> str:
    return str(_structured(node).get("backend", "auto"))


def _slow_structured_output(node: Node) -> bool:
    return (0, 24, 0) <= _version(node) <= (0, 25, 1)


def _whitespace_without_backend(node: Node) -> bool:
    return bool(_structured(node).get("disable_any_whitespace")) and _backend(node) not in ("xgrammar", "guidance")


def _whitespace_allowed(node: Node) -> bool:
    return not _structured(node).get("disable_any_whitespace")


def _guidance(node: Node) -> bool:
    return _backend(node) == "guidance"


def _spark_memory(node: Node) -> bool:
    share = node.arguments.get("gpu_memory_utilization")
    spark = "GB10" in node.device or node.settings.engine_profile == "dgx-spark"
    # Unset is vLLM's own 0.92.
    return spark and (share is None or float(share) > SPARK_MEMORY_SHARE)


def _thinking_before_grammar(node: Node) -> bool:
    if not (node.arguments.get("reasoning_parser") or _structured(node).get("reasoning_parser")):
        return False
    template = node.settings.chat_template_kwargs
    return not any(template.get(switch) is False for switch in _THINKING_SWITCHES)


def _fp8_cache_on_ampere(node: Node) -> bool:
    ampere = "A100" in node.device or node.settings.engine_profile.startswith("a100-")
    cache = str(node.arguments.get("kv_cache_dtype") or "auto")
    backend = str(node.arguments.get("attention_backend") or "").upper()
    return ampere and cache.startswith("fp8") and backend.startswith("TRITON")


COMBINATIONS: tuple[Combination, ...] = (
    Combination(
        "vLLM 0.24.0 to 0.25.1",
        "structured output runs at half its speed",
        "Install vLLM 0.26 or later",
        "vllm#49013",
        _slow_structured_output,
    ),
    Combination(
        "disable_any_whitespace without a backend that has it",
        "vLLM refuses it with backend auto, outlines and lm-format-enforcer",
        'Set "backend": "xgrammar" in structured_outputs_config (GLEANER_ENGINE_ARGS)',
        "vLLM's own check",
        _whitespace_without_backend,
    ),
    Combination(
        "white space allowed between JSON tokens",
        "models loop in it until the token limit: 240 of 2,048 outputs in our measurement",
        'Set "disable_any_whitespace": true in structured_outputs_config (GLEANER_ENGINE_ARGS), or leave it out',
        "vllm#38696",
        _whitespace_allowed,
    ),
    Combination(
        "backend guidance",
        "in bounded strings it writes raw control characters (404 of 2,048 outputs were no strict JSON), and label "
        "schemas are checked at submit against what xgrammar can do",
        'Set "backend": "xgrammar" in structured_outputs_config (GLEANER_ENGINE_ARGS)',
        "our measurement, vLLM 0.26",
        _guidance,
    ),
    Combination(
        f"DGX Spark with gpu_memory_utilization over {SPARK_MEMORY_SHARE}",
        "the memory is the host's too, and the machine wedges until it is reset",
        f"Set GLEANER_GPU_MEMORY_UTILIZATION to {SPARK_MEMORY_SHARE} or less, or use --profile dgx-spark",
        "vllm#46307, vllm#56824",
        _spark_memory,
    ),
    Combination(
        "reasoning_parser while the model thinks",
        "the grammar waits for an end of thinking that may never come: the label schema is not enforced, and nothing "
        "says so",
        'Set GLEANER_CHAT_TEMPLATE_KWARGS={"enable_thinking": false}, or leave GLEANER_REASONING_PARSER out',
        "vllm#19222, vllm#47027, vllm#50948, vllm#57726",
        _thinking_before_grammar,
    ),
    Combination(
        "A100 with an fp8 KV cache under a Triton attention backend",
        "Triton has no such type on this GPU, and the engine fails when it first reads the cache",
        "Leave attention_backend out (FlashInfer can widen it), or leave GLEANER_KV_CACHE_DTYPE out",
        "vllm#26431",
        _fp8_cache_on_ampere,
    ),
)


def known_bad(settings: Settings, arguments: Mapping[str, Any], version: str, device: str) -> list[Combination]:
    """The known faults that a start would meet.

    :param arguments: the engine's, after profile and settings. :param device: the GPU's name, empty without one.
    """
    node = Node(settings, arguments, version, device)
    return [combination for combination in COMBINATIONS if combination.holds(node)]


def require_good(settings: Settings, arguments: Mapping[str, Any], version: str, device: str) -> list[Combination]:
    """Refuse what is known to fail; with ``allow_known_bad`` return it, to be warned of.

    :raises KnownBadCombination: names each with its remedy.
    """
    found = known_bad(settings, arguments, version, device)
    if found and not settings.allow_known_bad:
        raise KnownBadCombination(
            "known to fail: " + "; ".join(map(str, found)) + ". GLEANER_ALLOW_KNOWN_BAD=true starts all the same."
        )
    return found
