"""Whether documents should be grouped is said where it pays, and nowhere else."""

from collections.abc import Callable

import pytest

from producer.grouping import DOCUMENTS_A_GROUP, SHARED_CHARS, grouping_hint
from producer.readers import open_reader
from schemas.settings import Settings

LONG = "g" * SHARED_CHARS
RECORDS = [
    {"id": n, "rules": f"{n % 5} {LONG}", "year": n % 2, "my title": f"{n} {LONG}", "text": "t"} for n in range(100)
]


def hint(write_corpus: Callable, template: str, records: list[dict] = RECORDS) -> str | None:
    return grouping_hint(open_reader(str(write_corpus(records)), Settings()), template)


@pytest.mark.parametrize(
    ("template", "options", "ways"),
    [
        ("{rules}\n\n{text}", "--group-by rules", 5),
        ("{rules} {year}: {my title} {text}", "--group-by rules --group-by year", 10),
        (f"{LONG} {{year}} {{id}} {{text}}", "--group-by year", 2),
    ],
)
def test_few_beginnings_of_many_prompts_are_worth_a_word(
    write_corpus: Callable, template: str, options: str, ways: int
) -> None:
    said = hint(write_corpus, template)
    assert said is not None
    assert f"`{options}`" in said
    assert f"in {ways} ways among the first 100 records" in said


@pytest.mark.parametrize(
    "template",
    [
        "{text}",
        "{text} {rules}",  # nothing before the document
        "{id} {rules} {text}",  # every id is another
        "{my title} {text}",  # and every title
        "{year} {text}",  # too short to fill a block
    ],
)
def test_where_it_would_not_pay_nothing_is_said(write_corpus: Callable, template: str) -> None:
    assert hint(write_corpus, template) is None


def test_what_stands_together_already_needs_no_word(write_corpus: Callable) -> None:
    grouped = sorted(RECORDS, key=lambda record: str(record["rules"]))
    assert hint(write_corpus, "{rules}\n{text}", grouped) is None
    assert hint(write_corpus, "{rules}\n{text}", [{**record, "rules": LONG} for record in RECORDS]) is None
    few = RECORDS[: 5 * DOCUMENTS_A_GROUP - 1]
    assert hint(write_corpus, "{rules}\n{text}", few) is None
