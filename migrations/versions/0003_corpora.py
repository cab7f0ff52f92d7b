"""Corpora that were selected, compared and read from several files; originals of what was changed; counts of finished
chunks, so that a ledger need not count their rows again; forecasts of jobs."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

#: The naming convention was applied to a name that followed it already.
_OLD_CODES_NAME = "corpus_rejects_corpus_rejects_code_check_check"
_OLD_CODES = (
    "code IN ('invalid_json', 'not_an_object', 'missing_id', 'missing_text', 'text_not_string', 'duplicate_id',"
    " 'too_large', 'bad_encoding')"
)
_CODES = (
    "code IN ('invalid_json', 'invalid_csv', 'not_an_object', 'wrong_columns', 'missing_id', 'missing_text',"
    " 'text_not_string', 'empty', 'duplicate_id', 'too_large', 'bad_encoding')"
)

_OUTCOMES = ("ok", "truncated", "invalid", "rejected", "failed", "cancelled")
_COUNTED_OWN = ", ".join(
    f"count(*) FILTER (WHERE label.outcome = '{name}' AND label.chunk_no = chunk.chunk_no) AS {name}"
    for name in _OUTCOMES
)
_COUNTS = ", ".join(f"'{name}', count(*) FILTER (WHERE label.outcome = '{name}')" for name in _OUTCOMES)
# The rows in a chunk's range, and those of them that are its own: after a retry a new chunk's range has rows of others.
_IN_RANGE = "label.job_id = {chunk}.job_id AND label.ordinal BETWEEN {chunk}.first_ordinal AND {chunk}.last_ordinal"
_ITS_ROWS = _IN_RANGE + " AND label.chunk_no = {chunk}.chunk_no"
_REASONS = """
SELECT jsonb_agg(to_jsonb(reason)) FROM (
    SELECT label.outcome, label.reason_code, count(*) AS rows
    FROM gleaner.labels AS label WHERE {where} AND label.outcome <> 'ok'
    GROUP BY label.outcome, label.reason_code
) AS reason
"""

# The ledger, with the counts that finished chunks bring along: only rows of the others are counted.
_PROGRESS = f"""
CREATE VIEW gleaner.progress AS
SELECT
    job.id AS job_id, job.total, counts.pending,
    {", ".join(f"counts.{name}" for name in _OUTCOMES)},
    job.total = counts.pending + {" + ".join(f"counts.{name}" for name in _OUTCOMES)} AS balanced
FROM gleaner.jobs AS job
CROSS JOIN LATERAL (
    SELECT
        coalesce(sum(part.pending), 0)::bigint AS pending,
        {", ".join(f"coalesce(sum(part.{name}), 0)::bigint AS {name}" for name in _OUTCOMES)}
    FROM (
        SELECT 0 AS pending, {", ".join(f"sum((chunk.counts ->> '{name}')::bigint) AS {name}" for name in _OUTCOMES)}
        FROM gleaner.chunks AS chunk WHERE chunk.job_id = job.id AND chunk.counts IS NOT NULL
        UNION ALL
        SELECT
            sum(chunk.size - open.rows) FILTER (WHERE chunk.state NOT IN ('done', 'cancelled')),
            {", ".join(f"sum(open.{name})" for name in _OUTCOMES)}
        FROM gleaner.chunks AS chunk CROSS JOIN LATERAL (
            SELECT count(*) AS rows, {_COUNTED_OWN}
            FROM gleaner.labels AS label WHERE {_IN_RANGE.format(chunk="chunk")}
        ) AS open
        WHERE chunk.job_id = job.id AND chunk.counts IS NULL
    ) AS part
) AS counts
"""
# Triggers, so that no statement that finishes a chunk, opens it again or takes a row away can forget the counts.
_FREEZE = f"""
CREATE FUNCTION gleaner.freeze_chunk_counts() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.counts := NULL;
    NEW.reasons := NULL;
    IF NEW.state = 'done' THEN
        SELECT jsonb_build_object({_COUNTS}) INTO NEW.counts
        FROM gleaner.labels AS label WHERE {_ITS_ROWS.format(chunk="NEW")};
        NEW.reasons := ({_REASONS.format(where=_ITS_ROWS.format(chunk="NEW"))});
    END IF;
    RETURN NEW;
END
$$
"""
_FREEZE_TRIGGER = """
CREATE TRIGGER freeze_chunk_counts BEFORE UPDATE OF state ON gleaner.chunks
FOR EACH ROW WHEN (OLD.state IS DISTINCT FROM NEW.state) EXECUTE FUNCTION gleaner.freeze_chunk_counts()
"""
_RECOUNT = f"""
UPDATE gleaner.chunks AS chunk SET
    counts = (
        SELECT jsonb_build_object({_COUNTS}) FROM gleaner.labels AS label WHERE {_ITS_ROWS.format(chunk="chunk")}
    ),
    reasons = ({_REASONS.format(where=_ITS_ROWS.format(chunk="chunk"))})
"""
_RECOUNT_FUNCTION = f"""
CREATE FUNCTION gleaner.recount_chunks() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    {_RECOUNT}
    FROM (SELECT DISTINCT job_id, chunk_no FROM gone) AS touched
    WHERE chunk.job_id = touched.job_id AND chunk.chunk_no = touched.chunk_no AND chunk.counts IS NOT NULL;
    RETURN NULL;
END
$$
"""
_RECOUNT_TRIGGER = """
CREATE TRIGGER recount_chunks AFTER DELETE ON gleaner.labels REFERENCING OLD TABLE AS gone
FOR EACH STATEMENT EXECUTE FUNCTION gleaner.recount_chunks()
"""


def upgrade() -> None:
    op.add_column(
        "corpora", sa.Column("selection", postgresql.JSONB(), nullable=False, server_default="{}"), schema="gleaner"
    )
    op.alter_column("corpora", "selection", server_default=None, schema="gleaner")
    op.add_column(
        "corpora", sa.Column("unselected_count", sa.BigInteger(), nullable=False, server_default="0"), schema="gleaner"
    )
    op.alter_column("corpora", "unselected_count", server_default=None, schema="gleaner")
    op.add_column("corpora", sa.Column("base_id", sa.BigInteger(), nullable=True), schema="gleaner")
    op.create_foreign_key(
        "corpora_base_id_fkey",
        "corpora",
        "corpora",
        ["base_id"],
        ["id"],
        source_schema="gleaner",
        referent_schema="gleaner",
    )
    op.add_column("corpora", sa.Column("difference", postgresql.JSONB(), nullable=True), schema="gleaner")
    op.create_index("corpora_name_idx", "corpora", ["name"], unique=False, schema="gleaner")
    op.create_table(
        "corpus_removed",
        sa.Column("corpus_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("external_id", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("corpus_id", "external_id", name="corpus_removed_pkey"),
        schema="gleaner",
    )
    op.add_column("corpus_rejects", sa.Column("source", sa.Text(), nullable=False, server_default=""), schema="gleaner")
    op.alter_column("corpus_rejects", "source", server_default=None, schema="gleaner")
    op.drop_constraint(op.f(_OLD_CODES_NAME), "corpus_rejects", schema="gleaner")
    op.create_check_constraint(op.f("corpus_rejects_code_check"), "corpus_rejects", _CODES, schema="gleaner")
    op.add_column("documents", sa.Column("original", sa.Text(), nullable=True), schema="gleaner")
    op.add_column("jobs", sa.Column("forecast", postgresql.JSONB(), nullable=True), schema="gleaner")
    op.add_column("chunks", sa.Column("counts", postgresql.JSONB(), nullable=True), schema="gleaner")
    op.add_column("chunks", sa.Column("reasons", postgresql.JSONB(), nullable=True), schema="gleaner")
    # Those that were finished before the triggers were there.
    op.execute(_RECOUNT + "WHERE chunk.state = 'done'")
    op.execute(_FREEZE)
    op.execute(_FREEZE_TRIGGER)
    op.execute(_RECOUNT_FUNCTION)
    op.execute(_RECOUNT_TRIGGER)
    op.execute(_PROGRESS)


def downgrade() -> None:
    op.execute("DROP VIEW gleaner.progress")
    op.execute("DROP TRIGGER recount_chunks ON gleaner.labels")
    op.execute("DROP FUNCTION gleaner.recount_chunks()")
    op.execute("DROP TRIGGER freeze_chunk_counts ON gleaner.chunks")
    op.execute("DROP FUNCTION gleaner.freeze_chunk_counts()")
    op.drop_column("chunks", "reasons", schema="gleaner")
    op.drop_column("chunks", "counts", schema="gleaner")
    op.drop_column("jobs", "forecast", schema="gleaner")
    op.drop_column("documents", "original", schema="gleaner")
    # Records that an older version would have taken for documents, or never have read.
    op.execute("DELETE FROM gleaner.corpus_rejects WHERE code IN ('invalid_csv', 'wrong_columns', 'empty')")
    op.drop_constraint(op.f("corpus_rejects_code_check"), "corpus_rejects", schema="gleaner")
    op.create_check_constraint(op.f(_OLD_CODES_NAME), "corpus_rejects", _OLD_CODES, schema="gleaner")
    op.drop_column("corpus_rejects", "source", schema="gleaner")
    op.drop_table("corpus_removed", schema="gleaner")
    op.drop_index("corpora_name_idx", table_name="corpora", schema="gleaner")
    op.drop_column("corpora", "difference", schema="gleaner")
    op.drop_constraint("corpora_base_id_fkey", "corpora", schema="gleaner")
    op.drop_column("corpora", "base_id", schema="gleaner")
    op.drop_column("corpora", "unselected_count", schema="gleaner")
    op.drop_column("corpora", "selection", schema="gleaner")
