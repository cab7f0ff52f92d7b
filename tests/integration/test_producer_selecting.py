"""Which records of a corpus are loaded, in which order, and what a corpus says of the one before it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from producer.duplicates import OnDuplicate
from producer.loader import Corpus, LoadRules, load_corpus
from producer.progress import silent
from producer.readers import open_reader
from producer.records import FieldMapping
from producer.selection import Condition, Selection
from schemas.database import Connection, queries
from schemas.errors import UsageError
from schemas.settings import Settings

MAPPING = FieldMapping("id", "text")


@pytest.fixture
def load(database: Connection, settings: Settings, write_corpus: Callable) -> Callable[..., Corpus]:
    def call(records: list[Any], name: str = "test", on_duplicate: str = "first", **selection: Any) -> Corpus:
        reader = open_reader(str(write_corpus(records)), settings)
        rules = LoadRules(OnDuplicate(on_duplicate), selection=Selection(**selection))
        return load_corpus(database, reader, MAPPING, name, settings, silent, rules)

    return call


def ids(database: Connection, corpus: Corpus) -> list[str]:
    rows = database.execute(
        "SELECT external_id FROM gleaner.documents WHERE corpus_id = %s ORDER BY ordinal", [corpus.id]
    )
    return [row["external_id"] for row in rows]


def rejects(database: Connection, corpus: Corpus) -> list[tuple[int, str]]:
    rows = queries.list_rejects(database, corpus_id=corpus.id, after=-1, batch=100)
    return [(row["line"], row["reason"]) for row in rows]


TWINS = [{"id": "a", "text": "1"}, {"id": "b", "text": "2"}, {"id": "a", "text": "3"}, {"id": "a", "text": "4"}]


def test_of_records_with_one_id_the_last_or_all_can_be_kept(database: Connection, load: Callable) -> None:
    last = load(TWINS, on_duplicate="last")
    assert ids(database, last) == ["b", "a"]
    reason = "the id 'a' is that of line 4 too, which is kept"
    assert rejects(database, last) == [(1, reason), (3, reason)]
    every = load(TWINS, on_duplicate="all")
    assert (ids(database, every), every.rejected) == (["a", "b", "a", "a"], 0)
    assert ids(database, load(TWINS)) == ["a", "b"]


MANY = [{"id": n, "text": "t", "year": 2000 + n % 10, "field": "abc"[n % 3]} for n in range(100)]


def test_only_what_is_selected_is_loaded(database: Connection, load: Callable) -> None:
    records = [*MANY[:50], "broken", *MANY[50:]]
    some = load(records, where=(Condition.parse("year>=2005"), Condition.parse("field=a")))
    assert (some.documents, some.rejected, some.unselected) == (17, 1, 83)
    assert all(int(one) % 10 >= 5 and int(one) % 3 == 0 for one in ids(database, some))
    first = load(records, limit=3)
    assert (ids(database, first), first.rejected) == (["0", "1", "2"], 0)
    sample = load(records, sample=20, seed=1)
    assert (sample.documents, sample.rejected, sample.unselected) == (20, 1, 80)
    assert ids(database, sample) == sorted(ids(database, sample), key=int)
    again = load(records, sample=20, seed=1)
    assert (again.id, again.created) == (sample.id, False)
    assert (again.unselected, again.documents) == (80, 20)
    other = load(records, sample=20, seed=2)
    assert set(ids(database, other)) != set(ids(database, sample))
    with pytest.raises(UsageError, match=r"none of 100 documents of .* is selected"):
        load(records, where=(Condition.parse("year>3000"),))


def test_documents_that_share_a_field_stand_together(database: Connection, load: Callable) -> None:
    corpus = load(MANY, group_by=("field", "year"))
    keys = [(int(one) % 3, int(one) % 10) for one in ids(database, corpus)]
    assert keys == sorted(keys)
    assert len(keys) == 100
    ordinals = database.execute("SELECT min(ordinal) AS a, max(ordinal) AS b FROM gleaner.documents").fetchone()
    assert ordinals == {"a": 0, "b": 99}


def test_a_changed_corpus_says_what_is_different(database: Connection, load: Callable) -> None:
    first = load([{"id": n, "text": "t"} for n in range(10)])
    assert first.difference is None
    changed = [{"id": n, "text": "t2" if n < 3 else "t"} for n in range(1, 15)]
    changed[9]["more"] = 1  # metadata count too
    second = load(changed)
    assert second.difference is not None
    assert str(second.difference) == "+5 -1 ~2 documents"
    assert second.difference.base == first.id
    assert second.documents == 14
    found = load(changed)
    assert (found.id, found.created, found.difference) == (second.id, False, second.difference)
    assert load(changed, name="another").difference == second.difference  # the same bytes: the corpus is there
    assert load(changed[:-1], name="another").difference is None
    assert load(changed, limit=5).difference is None  # not the same kind of corpus


def test_only_new_documents_are_loaded_day_by_day(database: Connection, load: Callable) -> None:
    state = dict.fromkeys(range(10), "t")

    def day() -> Corpus:
        return load([{"id": n, "text": text} for n, text in state.items()], only_new=True)

    first = day()
    assert (first.documents, first.difference) == (10, None)
    state |= {10: "t", 11: "t", 3: "changed"}
    del state[5]
    second = day()
    assert (ids(database, second), str(second.difference)) == (["3", "10", "11"], "+2 -1 ~1 documents")
    assert day().id == second.id  # the same call again
    state[12] = "t"
    third = day()  # against all that is known, not only the day before
    assert (ids(database, third), str(third.difference)) == (["12"], "+1 -0 ~0 documents")
    state[5] = "t"
    fourth = day()  # what was gone is new again
    assert (ids(database, fourth), str(fourth.difference)) == (["5"], "+1 -0 ~0 documents")
    del state[0]
    fifth = day()
    assert fifth.nothing_new
    assert (fifth.id, str(fifth.difference)) == (fourth.id, "+0 -1 ~0 documents")
    counts = database.execute("SELECT count(*) AS n FROM gleaner.corpora").fetchone()
    assert counts == {"n": 4}


def test_the_commands_say_so(call_cli: Callable, write_corpus: Callable, database: Connection) -> None:
    path = write_corpus([{"id": n, "text": "t"} for n in range(5)])
    assert call_cli("enqueue", path, "--schema", "papers").returncode == 0
    write_corpus([{"id": n, "text": "t"} for n in range(6)])
    new = call_cli("enqueue", path, "--schema", "papers", "--only-new")
    assert new.returncode == 0, new.stderr
    assert "to corpus 1, corpus, before it: +1 -0 ~0 documents" in new.stdout
    assert "Job 2 created: 1 chunk" in new.stdout
    write_corpus([{"id": n, "text": "t"} for n in range(5)])
    none = call_cli("enqueue", path, "--schema", "papers", "--only-new")
    assert none.returncode == 0
    assert "Nothing new since corpus 2, corpus: +0 -1 ~0 documents. No job was made." in none.stdout
    assert database.execute("SELECT count(*) AS n FROM gleaner.jobs").fetchone() == {"n": 2}
    as_json = json.loads(call_cli("enqueue", path, "--schema", "papers", "--only-new", "--json").stdout)
    assert (as_json["job_id"], as_json["difference"]["removed"]) == (None, 1)
    some = call_cli("enqueue", path, "--schema", "papers", "--where", "id>=3")
    assert "3 records not selected" in some.stdout


def test_the_same_corpus_under_another_label_schema_is_not_loaded_again(
    call_cli: Callable, write_corpus: Callable, database: Connection
) -> None:
    path = write_corpus([{"id": 1, "text": "t"}])
    assert call_cli("enqueue", path, "--schema", "papers").returncode == 0
    other = call_cli("enqueue", path, "--schema", "packages")
    assert "was loaded before" in other.stdout
    assert "Job 2 created" in other.stdout
    assert database.execute("SELECT count(*) AS n FROM gleaner.documents").fetchone() == {"n": 1}


def test_rejects_name_their_file(call_cli: Callable, tmp_path: Path, write_corpus: Callable) -> None:
    write_corpus([{"id": 1, "text": "t"}, "broken"], name="a.jsonl")
    write_corpus(["broken", {"id": 2, "text": "t"}], name="b.jsonl")
    loaded = call_cli("enqueue", tmp_path / "a.jsonl", tmp_path / "b.jsonl", "--schema", "papers")
    assert "line 1 of b.jsonl: invalid_json" in loaded.stdout
    assert "line 2 of a.jsonl: invalid_json" in call_cli("status", "1", "--rejects").stdout


def test_a_query_of_another_database_is_a_corpus(call_cli: Callable, database: Connection, settings: Settings) -> None:
    database.execute("CREATE TABLE public.tickets (id int, body text, at timestamptz DEFAULT now())")
    database.execute("INSERT INTO public.tickets (id, body) SELECT n, 'text ' || n FROM generate_series(1, 3000) AS n")
    url = settings.database_url.get_secret_value()
    for how in (["--table", "public.tickets"], ["--query", "SELECT * FROM public.tickets WHERE id <= 10"]):
        done = call_cli("enqueue", url, *how, "--schema", "papers", "--text-field", "body", "--json")
        assert done.returncode == 0, done.stderr
        summary = json.loads(done.stdout)
        assert summary["documents"] == (3000 if "--table" in how else 10)
        assert "gleaner:" not in summary["uri"]
    assert (
        "was loaded before"
        in call_cli("enqueue", url, "--table", "public.tickets", "--schema", "papers", "--text-field", "body").stdout
    )
    for how, words in (
        ([], "--query or --table"),
        (["--query", "SELECT nope"], "Postgres says: column"),
        (
            ["--query", "DELETE FROM public.tickets"],
            "Postgres says",
        ),
    ):
        refused = call_cli("enqueue", url, *how, "--schema", "papers")
        assert (refused.returncode, refused.stdout) == (2, "")
        assert words in refused.stderr
