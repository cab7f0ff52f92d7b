"""Named statements are made one by one, when they are first used: here all of them are."""

from pathlib import Path

import pytest

import schemas.database
from schemas.database import Statements

FOLDER = Path(schemas.database.__file__).with_name("sql")


def test_every_statement_can_be_made_and_has_a_name_of_its_own() -> None:
    statements = Statements(FOLDER)
    written = sum(file.read_text(encoding="utf-8").count("-- name: ") for file in FOLDER.iterdir())
    assert len(statements.texts) == written > 0
    for name in statements.texts:
        assert getattr(statements, name).__doc__, f"{name} is not described"


def test_a_statement_is_made_once() -> None:
    statements = Statements(FOLDER)
    assert statements.job_by_id is statements.job_by_id
    assert "WHERE job.id = %(job_id)s" in statements.job_by_id.sql
    assert "-- name" not in statements.job_by_id.sql


def test_a_name_that_no_statement_has() -> None:
    with pytest.raises(AttributeError, match="no statement 'job_by_nmae'"):
        _ = Statements(FOLDER).job_by_nmae


def test_statements_end_where_the_next_begins_and_where_their_file_ends(tmp_path: Path) -> None:
    (tmp_path / "a.sql").write_text("-- name: one()$\n-- One.\nSELECT 1;\n\n-- name: two()$\n-- Two.\nSELECT 2;")
    (tmp_path / "b.sql").write_text("-- name: three()$\n-- Three.\nSELECT 3;\n")
    statements = Statements(tmp_path)
    made = [getattr(statements, name).sql for name in ("one", "two", "three")]
    assert made == ["SELECT 1;", "SELECT 2;", "SELECT 3;"]
