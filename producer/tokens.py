"""How many tokens a text has, by the model's own tokenizer where it is at hand; and how many the model takes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from schemas.budget import MIN_DOCUMENT_TOKENS, room_words
from schemas.engine_settings import LONGEST_CONTEXT
from schemas.jsontext import parse_json
from schemas.label_spec import LabelSpec
from schemas.outcomes import OverLong
from schemas.settings import Settings

#: Characters of a token where nothing was measured: English has about four, Chinese between one and two.
CHARS_A_TOKEN = 4.0
#: Tokens that a chat template puts around system prompt and user turn: 10 to 30 with the models in use.
TEMPLATE_TOKENS = 20


@dataclass(frozen=True, slots=True)
class TokenCounter:
    """Counts tokens of texts. ``basis``: how, in words."""

    count: Callable[[Sequence[str]], list[int]]
    basis: str


def token_counter(settings: Settings, measured_chars: float | None = None) -> TokenCounter:
    """The best counter for the model that is set.

    :param measured_chars: characters a token of what the model labelled before, if that is known.
    """
    file = _model_file(settings, "tokenizer.json")
    if file is not None and find_spec("tokenizers"):
        tokenizer: Any = import_module("tokenizers").Tokenizer.from_file(str(file))
        tokenizer.no_truncation()
        tokenizer.no_padding()

        def count(texts: Sequence[str]) -> list[int]:
            return [len(each.ids) for each in tokenizer.encode_batch(list(texts), add_special_tokens=False)]

        return TokenCounter(count, "the model's tokenizer")
    chars = measured_chars or CHARS_A_TOKEN
    basis = f"{chars:.1f} characters a token, {'measured in the last jobs' if measured_chars else 'a guess'}"
    return TokenCounter(lambda texts: [round(len(text) / chars) for text in texts], basis)


def context_tokens(settings: Settings) -> int | None:
    """Tokens of prompt and output together that an engine with these settings takes; None when nobody can say yet."""
    if settings.max_model_len is not None:
        return settings.max_model_len
    known = [LONGEST_CONTEXT.get(settings.engine_profile), _model_context(settings)]
    return min((limit for limit in known if limit is not None), default=None)


def room_warning(context: int | None, spec: LabelSpec, shared: int, over_long_share: float) -> str | None:
    """What a submitter must know before a job whose documents do not fit the model's context; None where all do.

    :param context: tokens of prompt and output together; None: not known. :param shared: tokens of the instructions.
    :param over_long_share: of the documents, those that do not fit whole.
    """
    if context is None:
        return None
    reserved = spec.reserved_output_tokens
    why = room_words(context, reserved)
    if context - reserved - shared < MIN_DOCUMENT_TOKENS:
        return f"every document will be rejected as over_long, the instructions take about {shared:,} tokens and {why}"
    if over_long_share and spec.over_long is OverLong.REJECT:
        remedy = "--over-long truncate-tail or split labels them too"
        return f"about {over_long_share:.1%} of the documents will be rejected as over_long ({remedy}): {why}"
    return None


def _model_context(settings: Settings) -> int | None:
    """As the model's own configuration says; not of one whose positions are stretched, by rules of its family."""
    file = _model_file(settings, "config.json")
    try:
        config = parse_json(file.read_bytes()) if file is not None else {}
    except (OSError, ValueError):
        return None
    text = config.get("text_config", config)
    limit = None if text.get("rope_scaling") else text.get("max_position_embeddings")
    return limit if isinstance(limit, int) else None


def _model_file(settings: Settings, name: str) -> Path | None:
    model = settings.model_path or settings.model
    file = Path(model) / name
    if file.is_file():
        return file
    if not find_spec("huggingface_hub"):
        return None
    # Only what was fetched before: nothing is downloaded to count tokens.
    try:
        found = import_module("huggingface_hub").try_to_load_from_cache(model, name)
    except ValueError:  # the name can't be that of a model on the hub
        return None
    return Path(found) if isinstance(found, str) else None
