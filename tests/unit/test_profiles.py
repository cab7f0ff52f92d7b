"""Node profiles: every name that the setting takes, and what wins over what."""

from typing import get_args

import pytest

from schemas.engine_settings import LONGEST_CONTEXT, EngineProfile
from schemas.settings import Settings
from worker.engine.combinations import SPARK_MEMORY_SHARE
from worker.engine.profiles import PROFILES
from worker.engine.vllm import engine_arguments


def arguments(**given) -> dict:
    return engine_arguments(Settings(engine="vllm", **given))


def test_each_name_of_the_setting_is_a_profile() -> None:
    assert set(PROFILES) == set(get_args(EngineProfile))


@pytest.mark.parametrize("name", PROFILES)
def test_each_profile_bounds_what_a_step_takes(name) -> None:
    made = arguments(engine_profile=name)
    assert made["max_num_seqs"] <= made["max_num_batched_tokens"]
    assert made["structured_outputs_config"]["disable_any_whitespace"]
    assert made["trust_remote_code"] is False
    assert "quantization" not in made


@pytest.mark.parametrize("name", [name for name in PROFILES if name != "cpu"])
def test_each_gpu_profile_leaves_memory_free(name) -> None:
    assert arguments(engine_profile=name)["gpu_memory_utilization"] <= 0.90


def test_a_spark_shares_its_memory_with_the_host() -> None:
    assert arguments(engine_profile="dgx-spark")["gpu_memory_utilization"] <= SPARK_MEMORY_SHARE
    assert LONGEST_CONTEXT["dgx-spark"] <= 32768


def test_hopper_takes_larger_steps_than_ampere() -> None:
    h200, a100 = arguments(engine_profile="h200"), arguments(engine_profile="a100-80g")
    assert h200["max_num_batched_tokens"] > a100["max_num_batched_tokens"]


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("max_num_seqs", 7),
        ("max_num_batched_tokens", 512),
        ("max_model_len", 2048),
        ("gpu_memory_utilization", 0.5),
        ("quantization", "awq"),
        ("kv_cache_dtype", "fp8"),
        ("reasoning_parser", "qwen3"),
        ("trust_remote_code", True),
        ("tensor_parallel_size", 2),
        ("seed", 5),
    ],
)
def test_a_setting_wins_over_the_profile_and_free_arguments_over_both(setting, value) -> None:
    assert arguments(engine_profile="h100", **{setting: value})[setting] == value
    assert arguments(engine_profile="h100", **{setting: value}, engine_args={setting: "x"})[setting] == "x"
