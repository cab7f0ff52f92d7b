"""What the model will be asked: the prompts of a few documents, as workers render them."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from producer.readers import Advance, Reader
from producer.records import Document, FieldMapping, Reject, read_record
from producer.selection import Selection
from producer.tokens import TokenCounter
from schemas.jsontext import parse_json
from schemas.label_spec import LabelSpec
from schemas.outcomes import RowFinal
from schemas.user_turn import UserTurn


@dataclass(frozen=True, slots=True)
class Rendered:
    """One document's user turn. ``fault``: why it has none."""

    document_id: str
    text_chars: int
    turn: str
    tokens: int  #: of the turn alone
    flags: list[str]
    fault: str | None


@dataclass(slots=True)
class Looked:
    """What a look at a corpus came to, counted as it goes."""

    records: int = 0
    documents: int = 0
    rejected: int = 0
    first_reject: Reject | None = None

    @property
    def why(self) -> str:
        """Why there is no document, as far as the first reject tells it: the end of a sentence."""
        return f": {self.first_reject.reason}" if self.first_reject else ""


def look(
    reader: Reader,
    mapping: FieldMapping,
    max_chars: int,
    selection: Selection,
    looked: Looked,
    advance: Advance = lambda _: None,
) -> Iterator[dict[str, Any]]:
    """Every document of a corpus that is selected, as workers get it: ``external_id``, ``text``, ``meta``, ``flags``.

    Duplicates are not found: that takes the whole corpus. Nothing is written.
    """
    for _, _, content, _ in reader.records(advance):
        looked.records += 1
        made = content if isinstance(content, Reject) else read_record(content, mapping, max_chars)
        if isinstance(made, Reject):
            looked.rejected += 1
            looked.first_reject = looked.first_reject or made
            continue
        if isinstance(content, dict) and not selection.matches(content):
            continue
        looked.documents += 1
        yield _as_row(made)
        if looked.documents == selection.limit:
            return


def render(spec: LabelSpec, documents: Iterable[dict[str, Any]], counter: TokenCounter) -> list[Rendered]:
    """The user turn of each document."""
    turn = UserTurn(spec)
    rendered = []
    for document in documents:
        fault, text = None, ""
        try:
            text = turn.render(document["external_id"], document["text"], document["meta"])
        except RowFinal as final:
            fault = str(final)
        tokens = counter.count([text])[0]
        rendered.append(
            Rendered(document["external_id"], len(document["text"]), text, tokens, document["flags"], fault)
        )
    return rendered


def _as_row(made: Document) -> dict[str, Any]:
    return {
        "external_id": made.external_id,
        "text": made.text,
        "meta": parse_json(made.meta),
        "flags": [str(flag) for flag in made.flags],
    }
