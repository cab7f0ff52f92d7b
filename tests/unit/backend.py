"""The structured-output backend itself, as vLLM drives it. Tests that ask it are skipped where it is not installed."""

import json
import warnings
from functools import cache
from typing import Any

import pytest


@cache
def xgrammar() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOKENIZERS_PARALLELISM", "false")
        return pytest.importorskip("xgrammar")


def grammar(schema: Any) -> Any:
    """As vLLM compiles it with ``disable_any_whitespace``."""
    return xgrammar().Grammar.from_json_schema(json.dumps(schema), any_whitespace=False, separators=(",", ":"))


def writer(compiled: Any) -> Any:
    """What tells whether the engine can write a text."""
    compiler = xgrammar().GrammarCompiler(xgrammar().TokenizerInfo([]), cache_enabled=False)
    context = compiler.compile_grammar(compiled)

    def accepts(text: str) -> bool:
        matcher = xgrammar().GrammarMatcher(context, terminate_without_stop_token=True)
        return matcher.accept_string(text) and matcher.is_terminated()

    return accepts


def can_write(compiled: Any, value: Any) -> bool:
    return writer(compiled)(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


@cache
def _vllm() -> tuple[Any, Any]:
    xgrammar()
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore")  # torch's own
        patch.setenv("VLLM_LOGGING_LEVEL", "ERROR")
        pytest.importorskip("vllm")
        backend = pytest.importorskip("vllm.v1.structured_output.backend_xgrammar")
        return backend, pytest.importorskip("vllm.sampling_params")


def vllm_accepts(schema: Any) -> bool:
    """What vLLM says to a schema when a request comes in, as in its validate_xgrammar_grammar."""
    backend, params = _vllm()
    try:
        params.check_json_nesting(schema)
        if backend.has_xgrammar_unsupported_json_features(schema):
            return False
        grammar(schema)
    except Exception:
        return False
    return True
