"""Prompts as token ids: the chat template around a user turn whose special tokens stay plain text."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from tokenizers import Tokenizer

from schemas.errors import EngineUnavailable

#: Stands for the user turn while the template is rendered. Plain letters: no template strips or changes them.
_PLACEHOLDER = "gleanerplaceholder9f3a7c51user"

#: Frames kept: one a system prompt, so one a job that this worker has lately served.
_FRAMES = 64


@dataclass(frozen=True, slots=True)
class _Frame:
    """What the chat template puts around the user turn, as token ids."""

    before: list[int]
    after: list[int]


class ChatTokenizer:
    """Encodes prompts for one model.

    The template's own text is encoded with its control tokens; the user turn apart from it, with none. So the ids
    before a document are the same for every document (prefix caching), and ``<|im_end|>`` in a document is letters.
    """

    def __init__(self, tokenizer: Any, template_kwargs: dict[str, Any]) -> None:
        """:raises EngineUnavailable: when the model has no fast tokenizer or no usable chat template."""
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if not isinstance(backend, Tokenizer):
            raise EngineUnavailable(
                f"{type(tokenizer).__name__} is no fast tokenizer: documents could forge control tokens. "
                "Serve a model with a tokenizer.json."
            )
        self._tokenizer = tokenizer
        self._kwargs = template_kwargs
        self._control = Tokenizer.from_str(backend.to_str())
        self._plain = _without_control_tokens(backend)
        for each in (self._control, self._plain):
            each.no_truncation()
            each.no_padding()
        self._frame = lru_cache(maxsize=_FRAMES)(self._make_frame)
        self._frame("")

    def encode(self, system_prompt: str, user_texts: Sequence[str]) -> list[list[int]]:
        """Token ids of the whole prompt for each user turn."""
        frame = self._frame(system_prompt)
        encoded = self._plain.encode_batch_fast(list(user_texts), add_special_tokens=False)
        return [frame.before + each.ids + frame.after for each in encoded]

    def offsets(self, text: str) -> list[int]:
        """Where each token of a document's text starts, in characters."""
        return [first for first, _ in self._plain.encode(text, add_special_tokens=False).offsets]

    def _make_frame(self, system_prompt: str) -> _Frame:
        text = self._render(system_prompt)
        before, found, after = text.partition(_PLACEHOLDER)
        if not found or _PLACEHOLDER in after:
            raise EngineUnavailable("the model's chat template does not put the user's turn into the prompt once")
        return _Frame(self._ids(before), self._ids(after))

    def _render(self, system_prompt: str) -> str:
        system = [{"role": "system", "content": system_prompt}] if system_prompt else []
        try:
            return self._apply([*system, {"role": "user", "content": _PLACEHOLDER}])
        except Exception as error:
            if not system:
                raise EngineUnavailable(f"the model has no usable chat template: {error}") from error
            # Some templates refuse a system turn: the instructions then open the user's.
            return self._apply([{"role": "user", "content": f"{system_prompt}\n\n{_PLACEHOLDER}"}])

    def _apply(self, messages: list[dict[str, str]]) -> str:
        return str(
            self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **self._kwargs)
        )

    def _ids(self, text: str) -> list[int]:
        return list(self._control.encode(text, add_special_tokens=False).ids)


def _without_control_tokens(tokenizer: Tokenizer) -> Tokenizer:
    """A copy that has no added tokens but runs of white space, so that no text encodes to a control token.

    Marking them special would not do: turn and thinking marks of some models are added but not special.
    """
    state = json.loads(tokenizer.to_str())
    added = state["added_tokens"]
    state["added_tokens"] = [token for token in added if token["content"].isspace() and not token["special"]]
    plain = Tokenizer.from_str(json.dumps(state))
    control = {token["id"] for token in added} - {token["id"] for token in state["added_tokens"]}
    for token in added:
        if control & set(plain.encode(token["content"], add_special_tokens=False).ids):
            raise EngineUnavailable(
                f"the tokenizer turns the text {token['content']!r} into a control token: documents could forge turns"
            )
    return plain
