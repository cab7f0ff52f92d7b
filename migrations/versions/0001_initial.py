"""Tables, the ledger, and the analysts' schema."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


# `pending` is counted from the chunks that are not finished, not as what is missing from the total: a row too few in a
# finished chunk, or a row outside the job's chunks, makes `balanced` false.
LEDGER = """
CREATE VIEW gleaner.ledger AS
SELECT
    job.id AS job_id,
    corpus.name AS corpus,
    spec.name || '_v' || spec.version AS label_spec,
    job.model,
    job.state,
    job.total,
    waiting.documents - waiting.rows AS pending,
    counts.ok, counts.truncated, counts.invalid, counts.rejected, counts.failed, counts.cancelled,
    job.total = waiting.documents - waiting.rows
        + counts.ok + counts.truncated + counts.invalid + counts.rejected + counts.failed + counts.cancelled AS balanced
FROM gleaner.jobs AS job
JOIN gleaner.corpora AS corpus ON corpus.id = job.corpus_id
JOIN gleaner.label_specs AS spec ON spec.id = job.label_spec_id
CROSS JOIN LATERAL (
    SELECT
        count(*) FILTER (WHERE label.outcome = 'ok') AS ok,
        count(*) FILTER (WHERE label.outcome = 'truncated') AS truncated,
        count(*) FILTER (WHERE label.outcome = 'invalid') AS invalid,
        count(*) FILTER (WHERE label.outcome = 'rejected') AS rejected,
        count(*) FILTER (WHERE label.outcome = 'failed') AS failed,
        count(*) FILTER (WHERE label.outcome = 'cancelled') AS cancelled
    FROM gleaner.labels AS label
    WHERE label.job_id = job.id
) AS counts
CROSS JOIN LATERAL (
    SELECT
        coalesce(sum(chunk.size), 0)::bigint AS documents,
        coalesce(sum((
            SELECT count(*) FROM gleaner.labels AS label
            WHERE label.job_id = chunk.job_id
              AND label.ordinal BETWEEN chunk.first_ordinal AND chunk.last_ordinal
        )), 0)::bigint AS rows
    FROM gleaner.chunks AS chunk
    WHERE chunk.job_id = job.id AND chunk.state NOT IN ('done', 'cancelled')
) AS waiting
"""


def upgrade() -> None:
    op.create_table(
        "corpora",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("uri", sa.Text(), nullable=False),
        sa.Column("fingerprint", sa.Text(), nullable=False),
        sa.Column("field_mapping", postgresql.JSONB(), nullable=False),
        sa.Column("document_count", sa.BigInteger(), nullable=False),
        sa.Column("rejected_count", sa.BigInteger(), nullable=False),
        sa.Column("loaded_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("id", name="corpora_pkey"),
        sa.UniqueConstraint("fingerprint", name="corpora_fingerprint_key"),
        schema="gleaner",
    )
    op.create_table(
        "corpus_rejects",
        sa.Column("corpus_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("position", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("line", sa.BigInteger(), nullable=False),
        sa.Column("code", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("excerpt", sa.Text(), nullable=False),
        sa.CheckConstraint(
            "code IN ('invalid_json', 'not_an_object', 'missing_id', 'missing_text', 'text_not_string',"
            " 'duplicate_id', 'too_large', 'bad_encoding')",
            name="corpus_rejects_code_check",
        ),
        sa.PrimaryKeyConstraint("corpus_id", "position", name="corpus_rejects_pkey"),
        schema="gleaner",
    )
    op.create_table(
        "documents",
        sa.Column("corpus_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("ordinal", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("external_id", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("meta", postgresql.JSONB(), nullable=False),
        sa.Column("content_hash", postgresql.BYTEA(), nullable=False),
        sa.Column("flags", postgresql.ARRAY(sa.Text()), nullable=False),
        sa.PrimaryKeyConstraint("corpus_id", "ordinal", name="documents_pkey"),
        schema="gleaner",
    )
    op.create_index(
        "documents_corpus_id_external_id_idx",
        "documents",
        ["corpus_id", "external_id"],
        unique=False,
        schema="gleaner",
    )
    op.create_table(
        "label_specs",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("json_schema", postgresql.JSON(), nullable=False),
        sa.Column("system_prompt", sa.Text(), nullable=False),
        sa.Column("template", sa.Text(), nullable=False),
        sa.Column("sampling", postgresql.JSONB(), nullable=False),
        sa.Column("over_long", sa.Text(), nullable=False),
        sa.Column("class_path", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("id", name="label_specs_pkey"),
        sa.UniqueConstraint("digest", name="label_specs_digest_key"),
        sa.UniqueConstraint("name", "version", name="label_specs_name_version_key"),
        schema="gleaner",
    )
    op.create_table(
        "engines",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("info", postgresql.JSONB(), nullable=False),
        sa.Column("registered_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("id", name="engines_pkey"),
        sa.UniqueConstraint("digest", name="engines_digest_key"),
        schema="gleaner",
    )
    op.create_table(
        "jobs",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("corpus_id", sa.BigInteger(), nullable=False),
        sa.Column("label_spec_id", sa.BigInteger(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("total", sa.BigInteger(), nullable=False),
        sa.Column("final_counts", postgresql.JSONB(), nullable=True),
        sa.Column("submitted_by", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "state IN ('queued', 'running', 'paused', 'cancelling', 'cancelled', 'done')",
            name="jobs_state_check",
        ),
        sa.ForeignKeyConstraint(["corpus_id"], ["gleaner.corpora.id"], name="jobs_corpus_id_fkey"),
        sa.ForeignKeyConstraint(["label_spec_id"], ["gleaner.label_specs.id"], name="jobs_label_spec_id_fkey"),
        sa.PrimaryKeyConstraint("id", name="jobs_pkey"),
        sa.UniqueConstraint("corpus_id", "label_spec_id", "model", name="jobs_corpus_id_label_spec_id_model_key"),
        schema="gleaner",
    )
    op.create_index("jobs_label_spec_id_idx", "jobs", ["label_spec_id"], unique=False, schema="gleaner")
    op.create_table(
        "chunks",
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("chunk_no", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("first_ordinal", sa.BigInteger(), nullable=False),
        sa.Column("last_ordinal", sa.BigInteger(), nullable=False),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("lease_owner", sa.Text(), nullable=True),
        sa.Column("lease_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("published_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("last_error", sa.Text(), nullable=True),
        sa.CheckConstraint(
            "state IN ('queued', 'running', 'done', 'cancelled', 'quarantined')", name="chunks_state_check"
        ),
        sa.ForeignKeyConstraint(["job_id"], ["gleaner.jobs.id"], name="chunks_job_id_fkey"),
        sa.PrimaryKeyConstraint("job_id", "chunk_no", name="chunks_pkey"),
        schema="gleaner",
    )
    op.create_table(
        "labels",
        sa.Column("job_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("ordinal", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("chunk_no", sa.Integer(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("label", postgresql.JSONB(), nullable=True),
        sa.Column("reason_code", sa.Text(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("raw_output", sa.Text(), nullable=True),
        sa.Column("confidence", sa.Float(), nullable=True),
        sa.Column("finish_reason", sa.Text(), nullable=True),
        sa.Column("prompt_tokens", sa.Integer(), nullable=True),
        sa.Column("dropped_tokens", sa.Integer(), nullable=False),
        sa.Column("parts", sa.Integer(), nullable=False),
        sa.Column("output_tokens", sa.Integer(), nullable=True),
        sa.Column("cached_tokens", sa.Integer(), nullable=True),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("latency_s", sa.Float(), nullable=True),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("worker", sa.Text(), nullable=False),
        sa.Column("engine_id", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint("(outcome = 'ok') = (label IS NOT NULL)", name="labels_label_when_ok_check"),
        sa.CheckConstraint("(outcome = 'ok') = (reason_code IS NULL)", name="labels_reason_when_not_ok_check"),
        sa.CheckConstraint(
            "outcome IN ('ok', 'truncated', 'invalid', 'rejected', 'failed', 'cancelled')",
            name="labels_outcome_check",
        ),
        sa.ForeignKeyConstraint(
            ["job_id", "chunk_no"],
            ["gleaner.chunks.job_id", "gleaner.chunks.chunk_no"],
            name="labels_job_id_chunk_no_fkey",
        ),
        sa.PrimaryKeyConstraint("job_id", "ordinal", name="labels_pkey"),
        schema="gleaner",
    )
    op.execute(LEDGER)
    op.execute("CREATE SCHEMA labels")


def downgrade() -> None:
    op.execute("DROP SCHEMA labels CASCADE")
    op.execute("DROP VIEW gleaner.ledger")
    op.drop_table("labels", schema="gleaner")
    op.drop_table("chunks", schema="gleaner")
    op.drop_index("jobs_label_spec_id_idx", table_name="jobs", schema="gleaner")
    op.drop_table("jobs", schema="gleaner")
    op.drop_table("engines", schema="gleaner")
    op.drop_table("label_specs", schema="gleaner")
    op.drop_index("documents_corpus_id_external_id_idx", table_name="documents", schema="gleaner")
    op.drop_table("documents", schema="gleaner")
    op.drop_table("corpus_rejects", schema="gleaner")
    op.drop_table("corpora", schema="gleaner")
