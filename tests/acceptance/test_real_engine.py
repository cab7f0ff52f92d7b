"""The CLI as a user types it, with the real model on the CPU, into a real database."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hostile import COUNT, EMPTY, TRICKS, WITHOUT_LABEL, documents, good_documents

from schemas.label_spec import load_label_spec
from worker.check import LabelCheck

DEMO = Path(__file__).parents[2] / "ops" / "demo" / "corpus.jsonl"
OUTCOMES = ("ok", "truncated", "invalid", "rejected", "failed", "cancelled")

#: Small, so that a hundred labels take half a minute; values in several scripts must come back as they are.
RIVERS = {
    "type": "object",
    "properties": {
        "place": {"enum": ["河流", "نهر", "å", "🌊", "none"]},
        "about_water": {"type": "boolean"},
    },
    "required": ["place", "about_water"],
}


def label(worker: Any, *enqueue: str | Path) -> int:
    """Enqueue, watch to the end, and check the ledger; returns the job."""
    enqueued = worker.producer("enqueue", *enqueue, "--json")
    assert enqueued.returncode == 0, enqueued.stderr
    job = json.loads(enqueued.stdout)["job_id"]
    watched = worker.producer("watch", str(job), "--timeout", "270")
    assert watched.returncode == 0, watched.stdout + watched.stderr + worker.log.read_text()[-3000:]
    with worker.connect() as connection:
        ledger = connection.execute("SELECT * FROM gleaner.ledger WHERE job_id = %s", [job]).fetchone()
        doubled = connection.execute(
            "SELECT ordinal FROM gleaner.labels WHERE job_id = %s GROUP BY ordinal HAVING count(*) > 1", [job]
        ).fetchall()
    assert ledger["balanced"]
    assert ledger["pending"] == 0
    assert sum(ledger[outcome] for outcome in OUTCOMES) == ledger["total"]
    assert not doubled
    return int(job)


def rows_of(worker: Any, view: str, job: int) -> dict[str, dict[str, Any]]:
    with worker.connect() as connection:
        rows = connection.execute(f"SELECT * FROM labels.{view} WHERE job_id = %s", [job]).fetchall()
    return {row["document_id"]: row for row in rows}


def test_the_demo_corpus_ends_in_typed_rows_and_reasons(real_worker: Any, tmp_path: Path) -> None:
    lines = DEMO.read_bytes().splitlines(keepends=True)
    corpus = tmp_path / "demo.jsonl"
    # 24 good documents and every bad record: the whole corpus takes two minutes here.
    corpus.write_bytes(b"".join(lines[:24] + [line for line in lines if b"bad-" in line or line in lines[57:58]]))
    job = label(real_worker, corpus, "--schema", "papers", "--text-field", "abstract", "--chunk-size", "16")

    rows = rows_of(real_worker, "papers", job)
    assert len(rows) == 28
    check = LabelCheck(load_label_spec("papers")[0])
    labelled = {name: row for name, row in rows.items() if row["outcome"] == "ok"}
    assert len(labelled) >= 24
    for row in labelled.values():
        fields = {name: row[name] for name in load_label_spec("papers")[0].json_schema["properties"]}
        assert check.validated(fields) == fields
    assert {type(row["claims_power_law"]) for row in labelled.values()} == {bool}
    reasons = {name: row["reason_code"] for name, row in rows.items() if row["outcome"] == "rejected"}
    assert reasons == {"bad-too-long": "over_long"}
    assert rows["bad-nul"]["document_flags"] == ["nul_replaced"]
    assert rows["bad-lone-surrogate"]["document_flags"] == ["surrogate_replaced"]
    assert rows["bad-injection"]["outcome"] == "ok"

    status = json.loads(real_worker.producer("status", str(job), "--json").stdout)
    assert {reject["code"] for reject in rejects_of(real_worker, job)} == {
        "duplicate_id", "invalid_json", "missing_text", "empty",
    }  # fmt: skip
    assert status["ledger"]["balanced"]


def rejects_of(worker: Any, job: int) -> list[dict[str, Any]]:
    with worker.connect() as connection:
        return connection.execute(
            "SELECT r.* FROM gleaner.corpus_rejects r JOIN gleaner.jobs j USING (corpus_id) WHERE j.id = %s", [job]
        ).fetchall()


def test_figures_of_each_row_are_recorded(real_worker: Any, tmp_path: Path) -> None:
    corpus = tmp_path / "good.jsonl"
    corpus.write_text("".join(json.dumps(record) + "\n" for record in good_documents(8)))
    schema = tmp_path / "rivers.json"
    schema.write_text(json.dumps(RIVERS))
    job = label(real_worker, corpus, "--schema", schema)
    with real_worker.connect() as connection:
        rows = connection.execute(
            "SELECT l.*, e.info FROM gleaner.labels l JOIN gleaner.engines e ON e.id = l.engine_id WHERE job_id = %s",
            [job],
        ).fetchall()
    assert len(rows) == 8
    for row in rows:
        assert row["finish_reason"] == "stop"
        assert row["tries"] == 1
        assert row["prompt_tokens"] > row["output_tokens"] > 3
        assert 0 < row["latency_s"] < 270
        assert row["worker"].startswith("real@")
        assert (row["info"]["engine"], row["info"]["model"]) == ("vllm", real_worker.settings.model)
    # The instructions are the same for all: whoever came second found them in the prefix cache.
    assert any(row["cached_tokens"] > 0 for row in rows)


def test_hostile_documents_cost_only_themselves(real_worker: Any, tmp_path: Path) -> None:
    corpus, alone, schema = tmp_path / "hostile.jsonl", tmp_path / "alone.jsonl", tmp_path / "rivers.json"
    records = documents()
    assert len(records) == COUNT
    corpus.write_text("".join(json.dumps(record) + "\n" for record in records))
    good = [record for record in records if record["id"].startswith("good-")]
    alone.write_text("".join(json.dumps(record) + "\n" for record in good))
    schema.write_text(json.dumps(RIVERS))

    job = label(real_worker, corpus, "--schema", schema)
    rows = rows_of(real_worker, "rivers", job)
    assert len(rows) == COUNT - len(EMPTY)
    assert [reject["code"] for reject in rejects_of(real_worker, job)] == ["empty"] * len(EMPTY)
    for name, (_, reason) in WITHOUT_LABEL.items():
        row = rows.pop(f"none-{name}")
        assert (row["outcome"], row["reason_code"]) == ("rejected", reason), name
    assert {row["outcome"] for row in rows.values()} == {"ok"}, [r for r in rows.values() if r["outcome"] != "ok"]
    assert {row["place"] for row in rows.values()} <= set(RIVERS["properties"]["place"]["enum"])  # type: ignore[index]
    assert {f"trick-{name}" for name in TRICKS} <= rows.keys()

    # Among themselves the good documents get the labels that they got among the hostile ones.
    undisturbed = rows_of(real_worker, "rivers", label(real_worker, alone, "--schema", schema))
    assert set(undisturbed) == {record["id"] for record in good}
    assert {row["outcome"] for row in undisturbed.values()} == {"ok"}
    # Their labels too, but for what the order of sums in another batch can turn: no engine promises bit equality.
    same = [
        (rows[name]["place"], rows[name]["about_water"]) == (row["place"], row["about_water"])
        for name, row in undisturbed.items()
    ]
    assert sum(same) >= 0.9 * len(same)


def test_real_abstracts_are_labelled(real_worker: Any, shared_corpus: Callable[[str], Path], tmp_path: Path) -> None:
    lines = shared_corpus("arxiv_titled.jsonl").read_bytes().splitlines(keepends=True)[:32]
    corpus = tmp_path / "arxiv.jsonl"
    corpus.write_bytes(b"".join(lines))
    job = label(
        real_worker, corpus, "--schema", "papers", "--id-field", "id", "--text-field", "abstract", "--chunk-size", "16"
    )
    rows = rows_of(real_worker, "papers", job)
    assert len(rows) == 32
    assert sum(row["outcome"] == "ok" for row in rows.values()) >= 30
