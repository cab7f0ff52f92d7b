"""Known bad combinations are refused by name, with the remedy and where they were seen; good ones pass."""

import pytest

from schemas.settings import Settings
from worker.engine.combinations import COMBINATIONS, KnownBadCombination, known_bad, require_good
from worker.engine.vllm import engine_arguments

GOOD_VERSION = "0.26.0"
THINKING = {"enable_thinking": True}


def found(version: str = GOOD_VERSION, device: str = "", **given) -> list[str]:
    settings = Settings(engine="vllm", **given)
    return [bad.source for bad in known_bad(settings, engine_arguments(settings), version, device)]


def structured(**config) -> dict:
    return {"structured_outputs_config": config}


@pytest.mark.parametrize("profile", ["h200", "h100", "a100-80g", "a100-40g", "dgx-spark", "cpu", "default"])
def test_what_the_profiles_give_is_good(profile) -> None:
    assert found(engine_profile=profile) == []


@pytest.mark.parametrize("version", ["0.24.0", "0.24.1", "0.25.0", "0.25.1", "0.25.1+cu129", "0.25"])
def test_versions_that_halve_structured_output(version) -> None:
    assert found(version) == ["vllm#49013"]


@pytest.mark.parametrize("version", ["0.23.3", "0.25.2", "0.26.0", "0.32.0", "1.0.0", "0.26.1rc1.dev3+g1a2b", "dev"])
def test_versions_that_do_not(version) -> None:
    assert found(version) == []


@pytest.mark.parametrize("backend", ["auto", "outlines", "lm-format-enforcer"])
def test_white_space_can_only_be_forbidden_to_some_backends(backend) -> None:
    assert found(engine_args=structured(backend=backend, disable_any_whitespace=True)) == ["vLLM's own check"]


def test_a_backend_that_is_not_named_is_auto() -> None:
    assert found(engine_args=structured(disable_any_whitespace=True)) == ["vLLM's own check"]


@pytest.mark.parametrize("config", [{"backend": "xgrammar"}, {"backend": "xgrammar", "disable_any_whitespace": False}])
def test_white_space_allowed(config) -> None:
    assert found(engine_args=structured(**config)) == ["vllm#38696"]


def test_guidance() -> None:
    assert len(found(engine_args=structured(backend="guidance", disable_any_whitespace=True))) == 1


@pytest.mark.parametrize(
    ("given", "device", "bad"),
    [
        ({"engine_profile": "dgx-spark", "gpu_memory_utilization": 0.9}, "", True),
        ({"engine_profile": "dgx-spark", "gpu_memory_utilization": 0.85}, "NVIDIA GB10", False),
        ({"engine_profile": "default"}, "NVIDIA GB10", True),
        ({"gpu_memory_utilization": 0.5}, "NVIDIA GB10", False),
        ({"engine_args": {"gpu_memory_utilization": None}}, "NVIDIA GB10", True),
        ({"gpu_memory_utilization": 0.95}, "NVIDIA H200", False),
    ],
)
def test_a_spark_wedges_above_its_share(given, device, bad) -> None:
    assert found(device=device, **given) == (["vllm#46307, vllm#56824"] if bad else [])


@pytest.mark.parametrize(
    ("template", "bad"),
    [
        ({"enable_thinking": False}, False),
        ({"thinking": False}, False),
        ({"enable_thinking": True}, True),
        ({"enable_thinking": None}, True),
        ({}, True),
    ],
)
@pytest.mark.parametrize(
    "parser",
    [
        {"reasoning_parser": "qwen3"},
        {"engine_args": {"reasoning_parser": "qwen3"}},
        {"engine_args": structured(backend="xgrammar", disable_any_whitespace=True, reasoning_parser="deepseek_r1")},
    ],
)
def test_a_reasoning_parser_needs_thinking_off(template, parser, bad) -> None:
    assert bool(found(chat_template_kwargs=template, **parser)) == bad
    assert found(chat_template_kwargs=template) == []


@pytest.mark.parametrize("profile", ["a100-40g", "a100-80g"])
def test_an_fp8_cache_on_an_a100_needs_another_backend_than_triton(profile) -> None:
    given = {"engine_profile": profile, "kv_cache_dtype": "fp8"}
    assert found(**given) == []
    assert found(**given, engine_args={"attention_backend": "TRITON_ATTN"}) == ["vllm#26431"]
    assert found(engine_profile=profile, engine_args={"attention_backend": "TRITON_ATTN"}) == []
    given["engine_profile"] = "default"
    assert found(device="NVIDIA A100-SXM4-80GB", **given, engine_args={"attention_backend": "TRITON_ATTN"})
    assert not found(device="NVIDIA H100", **given, engine_args={"attention_backend": "TRITON_ATTN"})


def test_the_refusal_names_fault_source_remedy_and_the_way_on() -> None:
    settings = Settings(engine="vllm", reasoning_parser="qwen3", chat_template_kwargs=THINKING)
    with pytest.raises(KnownBadCombination) as caught:
        require_good(settings, engine_arguments(settings), "0.25.0", "")
    message = str(caught.value)
    for part in ("vLLM 0.24.0 to 0.25.1", "vllm#49013", "Install", "vllm#19222", "GLEANER_CHAT_TEMPLATE_KWARGS"):
        assert part in message
    assert "GLEANER_ALLOW_KNOWN_BAD=true" in message
    assert caught.value.exit_code == 2


def test_allowed_it_is_returned_to_be_warned_of() -> None:
    settings = Settings(engine="vllm", allow_known_bad=True)
    assert [str(bad) for bad in require_good(settings, engine_arguments(settings), "0.25.0", "")] != []
    assert require_good(settings, engine_arguments(settings), GOOD_VERSION, "") == []


def test_each_says_everything_once() -> None:
    assert len({bad.name for bad in COMBINATIONS}) == len(COMBINATIONS)
    for bad in COMBINATIONS:
        assert all((bad.name, bad.why, bad.remedy, bad.source))
        assert not bad.remedy.endswith(".")
