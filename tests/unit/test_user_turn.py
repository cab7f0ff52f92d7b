"""The user turn: a document is inserted once and never read as a template."""

import pytest

from schemas.label_spec import LabelSpec
from schemas.outcomes import Reason, RowFinal
from schemas.user_turn import UserTurn


def turn(template: str = "{text}") -> UserTurn:
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "additionalProperties": False}
    return UserTurn(LabelSpec(name="t", json_schema=schema, system_prompt="Label.", template=template))


def test_fields_are_filled_in_their_places() -> None:
    rendered = turn("{title} ({year}, {id})\n\n{text} {{end}}").render("x1", "Body.", {"title": "T", "year": 1999})
    assert rendered == "T (1999, x1)\n\nBody. {end}"


@pytest.mark.parametrize("text", ["{text}", "{0}", "{{", "}", "%s %(text)s", "{id!r}", "$text", "\\{text\\}"])
def test_braces_and_percent_signs_in_a_document_are_text(text: str) -> None:
    assert turn("<{text}>").render("x", text, {}) == f"<{text}>"
    assert turn("{title}: {text}").render("x", "body", {"title": text}) == f"{text}: body"


def test_metadata_is_asked_for_only_where_the_template_names_it() -> None:
    assert turn("{title}: {text}").needs_meta
    assert not turn("{id}: {text} {{title}}").needs_meta


@pytest.mark.parametrize("text", ["", " ", "\n\t\r\n", "\u3000\u2003\u00a0"])
def test_white_space_never_reaches_the_engine(text: str) -> None:
    with pytest.raises(RowFinal) as final:
        turn().render("x", text, {})
    assert final.value.code == Reason.EMPTY


def test_a_field_that_the_document_lacks_is_named() -> None:
    with pytest.raises(RowFinal) as final:
        turn("{title} {text}").render("x", "body", {"year": 1})
    assert final.value.code == Reason.MISSING_FIELD
    assert "'title'" in final.value.reason
