"""A forecast is the mean of a sample times the documents, with what is not known said to be not known."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from producer.estimate import MEASURED_RATES, History, forecast
from producer.tokens import CHARS_A_TOKEN, TEMPLATE_TOKENS, context_tokens
from schemas.budget import MAX_PARTS, MIN_DOCUMENT_TOKENS
from schemas.engine_settings import LONGEST_CONTEXT, EngineProfile
from schemas.label_spec import LabelSpec, load_label_spec
from schemas.outcomes import OverLong
from schemas.settings import Settings

HISTORY = History(
    prompt_tokens=200,
    output_tokens=50,
    output_spread=1,
    cached_share=0.6,
    chars_a_token=2.0,
    output_tokens_per_s=1000,
    same_spec=True,
)
#: Tokens of the system prompt below, and of the chat template.
SHARED = 400 / CHARS_A_TOKEN + TEMPLATE_TOKENS


@pytest.fixture
def spec() -> LabelSpec:
    return load_label_spec("papers", prompt="p" * 400)[0]


def sample(*chars: int) -> list[dict[str, Any]]:
    return [{"external_id": "a", "text": "x" * count, "meta": {}} for count in chars]


def test_tokens_are_those_of_the_sample_for_every_document(spec: LabelSpec) -> None:
    made = forecast(sample(400, 800, 1200), 1000, spec, Settings())
    prompt = SHARED + 800 / CHARS_A_TOKEN
    assert made.prompt_tokens == round(1000 * prompt)
    assert 0 < made.prompt_spread < 1
    assert made.cached_share == pytest.approx((400 / CHARS_A_TOKEN + TEMPLATE_TOKENS) / prompt)
    assert (made.seconds, made.gpu_hours, made.cost, made.over_long_share) == (None, None, None, None)
    assert "a guess" in made.basis["prompt tokens"]
    assert "not known" in made.basis["rate"]


def test_what_was_measured_wins_over_guesses(spec: LabelSpec) -> None:
    made = forecast(sample(400, 400), 1000, spec, Settings(gpu_hour_price=3.6), history=HISTORY, workers=2)
    assert made.prompt_tokens == 1000 * (800 / 2 + TEMPLATE_TOKENS)
    assert made.output_tokens == 50_000
    assert made.cached_share == 0.6
    assert made.seconds == pytest.approx(25)
    assert made.gpu_hours == pytest.approx(50 / 3600)
    assert made.cost == pytest.approx(0.05)
    assert made.prompt_spread == 0


def test_a_rate_that_is_given_or_measured_on_such_a_node(spec: LabelSpec) -> None:
    assert forecast(sample(4), 1000, spec, Settings(), rate=10, workers=4).seconds == pytest.approx(25)
    node = forecast(sample(4), 1000, spec, Settings(engine_profile="h200"))
    assert node.seconds == pytest.approx(node.output_tokens / MEASURED_RATES["h200"][0], rel=0.01)
    assert "profile h200 with SmolLM2-135M and an 8B shape: other models differ" in node.basis["rate"]


def test_a_profile_that_is_asked_about_wins_over_the_last_job(spec: LabelSpec) -> None:
    settings = Settings(engine_profile="h200")
    assert "last job" in forecast(sample(4), 1000, spec, settings, history=HISTORY).basis["rate"]
    asked = forecast(sample(4), 1000, spec, settings, history=HISTORY, profile="h200")
    assert asked.seconds == pytest.approx(asked.output_tokens / MEASURED_RATES["h200"][0], rel=0.01)
    unmeasured = forecast(sample(4), 1000, spec, settings, history=HISTORY, profile="h100")
    assert unmeasured.seconds is None
    assert unmeasured.basis["rate"].startswith("not known: none was measured on profile h100; give --rate")
    assert unmeasured.basis["rate"].endswith(": h200, cpu")


@pytest.mark.parametrize(
    ("policy", "texts", "labels"),
    [
        (OverLong.REJECT, 1 + 1000, 2),
        (OverLong.TRUNCATE_TAIL, 1 + 3 * 1000, 4),
        (OverLong.SPLIT, 1 + 1000 + 1010 + 2250, 1 + 1 + 2 + 3),
    ],
)
def test_an_over_long_document_takes_what_its_policy_leaves_of_it(
    spec: LabelSpec, policy: OverLong, texts: int, labels: int
) -> None:
    spec = spec.model_copy(update={"over_long": policy})
    context = round(SHARED + 1000 + spec.reserved_output_tokens)
    documents = sample(4, 4000, 4040, 9000)
    for settings, told in ((Settings(), context), (Settings(max_model_len=context), None)):
        made = forecast(
            documents, 4, spec, settings, context=told, history=replace(HISTORY, chars_a_token=CHARS_A_TOKEN)
        )
        assert made.over_long_share == 0.5
        assert made.prompt_tokens == texts + labels * SHARED
        assert made.output_tokens == labels * HISTORY.output_tokens
        assert made.seconds == pytest.approx(made.output_tokens / HISTORY.output_tokens_per_s)


def test_a_document_of_too_many_parts_or_without_room_is_rejected(spec: LabelSpec) -> None:
    spec = spec.model_copy(update={"over_long": OverLong.SPLIT})
    for room, chars in ((100, 4 * 100 * (MAX_PARTS + 1)), (MIN_DOCUMENT_TOKENS - 1, 400)):
        context = round(SHARED + room + spec.reserved_output_tokens)
        made = forecast(sample(chars), 1, spec, Settings(), context=context)
        assert (made.prompt_tokens, made.output_tokens, made.over_long_share) == (0, 0, 1)


def test_a_corpus_that_is_counted_whole_has_no_spread(spec: LabelSpec) -> None:
    whole = forecast(sample(400, 800, 1200), 3, spec, Settings())
    assert whole.prompt_spread == 0
    assert "all 3 documents" in whole.basis["prompt tokens"]
    assert forecast(sample(400, 800, 1200), 4, spec, Settings()).prompt_spread > 0


@pytest.mark.parametrize(
    ("config", "profile", "expected"),
    [
        ({"max_position_embeddings": 2048}, "cpu", 2048),
        ({"max_position_embeddings": 8192}, "cpu", LONGEST_CONTEXT["cpu"]),
        ({"text_config": {"max_position_embeddings": 2048}}, "default", 2048),
        ({"max_position_embeddings": 2048, "rope_scaling": {"factor": 4}}, "default", None),
        (None, "dgx-spark", LONGEST_CONTEXT["dgx-spark"]),
        (None, "default", None),
    ],
)
def test_what_a_model_takes_is_known_before_its_first_engine(
    tmp_path: Path, config: dict[str, Any] | None, profile: EngineProfile, expected: int | None
) -> None:
    if config is not None:
        (tmp_path / "config.json").write_text(json.dumps(config))
    settings = Settings(model_path=str(tmp_path), engine_profile=profile)
    assert context_tokens(settings) == expected
    assert context_tokens(settings.model_copy(update={"max_model_len": 100})) == 100


def test_a_document_that_can_not_be_prompted_costs_nothing(spec: LabelSpec) -> None:
    needs = spec.model_copy(update={"template": "{title}: {text}"})
    made = forecast(sample(4000), 1, needs, Settings())
    assert (made.prompt_tokens, made.output_tokens) == (0, 0)


def test_a_label_schema_that_leaves_no_room_is_named_with_the_remedy(spec: LabelSpec) -> None:
    for context in (spec.reserved_output_tokens + 130, 4):
        (warning,) = forecast(sample(42), 9, spec, Settings(), context=context).warnings
        assert "every document will be rejected as over_long" in warning
        assert f"{spec.reserved_output_tokens} are kept for the longest label" in warning
        assert "maxItems" in warning
        assert "GLEANER_MAX_MODEL_LEN" in warning


def test_documents_that_do_not_fit_are_told_before_unless_a_policy_takes_them(spec: LabelSpec) -> None:
    wide = Settings(max_model_len=4096)
    (warning,) = forecast(sample(40, 40_000), 2, spec, wide).warnings
    assert "about 50.0% of the documents will be rejected" in warning
    assert "maxItems" not in warning
    split = spec.model_copy(update={"over_long": OverLong.SPLIT})
    assert forecast(sample(40, 40_000), 2, split, wide).warnings == []
    assert forecast(sample(40), 2, spec, wide).warnings == []
