"""A forecast is the mean of a sample times the documents, with what is not known said to be not known."""

from typing import Any

import pytest

from producer.estimate import MEASURED_RATES, History, forecast
from producer.tokens import CHARS_A_TOKEN, TEMPLATE_TOKENS
from schemas.label_spec import LabelSpec, load_label_spec
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


@pytest.fixture
def spec() -> LabelSpec:
    return load_label_spec("papers", prompt="p" * 400)[0]


def sample(*chars: int) -> list[dict[str, Any]]:
    return [{"external_id": "a", "text": "x" * count, "meta": {}} for count in chars]


def test_tokens_are_those_of_the_sample_for_every_document(spec: LabelSpec) -> None:
    made = forecast(sample(400, 800, 1200), 1000, spec, Settings())
    prompt = (400 + 800) / CHARS_A_TOKEN + TEMPLATE_TOKENS
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
    assert node.seconds == pytest.approx(node.output_tokens / MEASURED_RATES["h200"], rel=0.01)
    assert "profile h200" in node.basis["rate"]


def test_over_long_documents_are_counted_with_the_room_for_a_label(spec: LabelSpec) -> None:
    context = round((400 + 4000) / CHARS_A_TOKEN) + TEMPLATE_TOKENS + spec.reserved_output_tokens
    made = forecast(sample(4, 4000, 4040, 9000), 4, spec, Settings(), context=context)
    assert made.over_long_share == 0.5


def test_a_document_that_can_not_be_prompted_costs_nothing(spec: LabelSpec) -> None:
    needs = spec.model_copy(update={"template": "{title}: {text}"})
    assert forecast(sample(4000), 1, needs, Settings()).prompt_tokens == 400 / CHARS_A_TOKEN + TEMPLATE_TOKENS
