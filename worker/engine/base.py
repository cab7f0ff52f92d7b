"""What every engine can do. The chunk's code knows only this."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from typing import Any, Protocol

from schemas.jsontext import dump_json

#: What ``structured_backend`` begins with where the engine has the decoder.
DECODER = "decoder"


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What serves the rows: recorded with each row, so that a label can be traced to what made it."""

    engine: str
    version: str
    model: str
    model_path: str
    revision: str | None
    max_model_len: int  #: tokens of prompt and output together
    max_num_seqs: int  #: sequences a step; of a server, requests at once
    structured_backend: str
    arguments: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """The fields, with a digest over all of them."""
        fields = asdict(self)
        return {**fields, "digest": sha256(dump_json(fields).encode()).hexdigest()[:16]}


@dataclass(frozen=True, slots=True)
class Prompt:
    """A document's prompt as its engine takes it: made by :meth:`Engine.encode`, brought back in a :class:`Request`."""

    size: int  #: tokens; where only a server can count them, an estimate that errs on the long side
    tokens: Sequence[int] = ()  #: the whole prompt, for an engine that takes token ids
    messages: Sequence[Mapping[str, str]] = ()  #: the turns, for a server that applies the chat template itself


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt to complete, under a JSON Schema if there is one."""

    prompt: Prompt
    schema_text: str | None  #: the same bytes for every request of a job: compiled grammars are cached by them
    max_tokens: int
    temperature: float
    top_p: float
    seed: int


@dataclass(frozen=True, slots=True)
class Generation:
    """What came back. ``finish_reason`` is ``stop`` when the model ended by itself, ``length`` when it was cut."""

    text: str
    finish_reason: str
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int  #: tokens of the prompt that the prefix cache held
    thoughts: str = ""  #: what a model that thinks wrote before its answer, where a server tells the two apart

    @property
    def only_thought(self) -> bool:
        """Whether the model thought and never came to an answer."""
        return bool(self.thoughts) and not self.text


#: What is said of a generation that only thought.
ONLY_THOUGHT = (
    "the model thought and did not answer: turn its thinking off (GLEANER_CHAT_TEMPLATE_KWARGS, or what its server "
    "takes in GLEANER_OPENAI_EXTRA_BODY)"
)


class Engine(Protocol):
    """A resident engine. Every method but ``start`` and ``close`` may be called from any thread at any time."""

    def start(self) -> None:
        """Load the model; returns when requests can be served.

        :raises EngineUnavailable: names the cause and the setting to change.
        """

    @property
    def info(self) -> EngineInfo:
        """What this engine is. Only after :meth:`start`."""

    def encode(self, system_prompt: str, user_texts: Sequence[str]) -> list[Prompt]:
        """The whole prompt for each user turn.

        Special tokens inside a user turn stay plain text: a document can't end its turn or begin another. An engine
        that can't promise this refuses such a prompt when it is submitted.
        """

    def offsets(self, text: str) -> list[int]:
        """Where each token of a document's text starts, in characters: places where it can be cut."""

    def submit(self, request: Request) -> Future[Generation]:
        """Queue a request. Cancelling the future aborts it.

        The future raises ``RowFinal`` when the engine refuses the prompt for good, ``RequestFailed`` when this request
        failed and may be tried again, ``EngineLost`` when the engine is gone.
        """

    @property
    def lost(self) -> bool:
        """Whether the engine is gone. To be polled: nothing is raised by itself."""

    def close(self) -> None:
        """Stop the engine and free the hardware. Safe to call twice, and after a failed start."""
