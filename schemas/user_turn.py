"""The user turn of one document: the label spec's template, filled once."""

import string
from typing import Any

from schemas.label_spec import LabelSpec
from schemas.outcomes import Outcome, Reason, RowFinal


class UserTurn:
    """Renders documents into one label spec's template.

    What a document brings is inserted as it is and never looked at again: braces in it are text.
    """

    def __init__(self, spec: LabelSpec) -> None:
        self._parts = [(literal, name) for literal, name, _, _ in string.Formatter().parse(spec.template)]

    @property
    def needs_meta(self) -> bool:
        """Whether the template names anything of a document but its text and id."""
        return any(name not in (None, "text", "id") for _, name in self._parts)

    def render(self, external_id: str, text: str, meta: dict[str, Any]) -> str:
        """The user turn.

        :raises RowFinal: ``empty`` for a document of white space only, ``missing_field`` for a template field that the
            document has not.
        """
        if not text or text.isspace():
            raise RowFinal(Outcome.REJECTED, Reason.EMPTY, "the document holds nothing but white space")
        turn = []
        for literal, name in self._parts:
            turn.append(literal)
            if name == "text":
                turn.append(text)
            elif name == "id":
                turn.append(external_id)
            elif name is not None:
                turn.append(_field(name, meta))
        return "".join(turn)


def _field(name: str, meta: dict[str, Any]) -> str:
    value = meta.get(name)
    if value is None:
        raise RowFinal(
            Outcome.REJECTED, Reason.MISSING_FIELD, f"the template asks for {name!r}, which the document has not"
        )
    return value if isinstance(value, str) else str(value)
