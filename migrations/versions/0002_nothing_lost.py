"""Cancel, pause, retry and quarantine: a job's reason, rows that no engine made, rows that were tried again."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("state_reason", sa.Text(), nullable=True), schema="gleaner")
    op.add_column(
        "chunks", sa.Column("alone", sa.Boolean(), server_default=sa.false(), nullable=False), schema="gleaner"
    )
    op.add_column(
        "chunks", sa.Column("failures_alone", sa.Integer(), server_default="0", nullable=False), schema="gleaner"
    )
    op.alter_column("labels", "engine_id", existing_type=sa.BigInteger(), nullable=True, schema="gleaner")
    op.create_index(
        "jobs_live_idx",
        "jobs",
        ["model", "priority"],
        unique=False,
        schema="gleaner",
        postgresql_where=sa.text("state IN ('queued', 'running', 'paused', 'cancelling')"),
    )
    op.create_index(
        "chunks_open_idx",
        "chunks",
        ["job_id", "chunk_no"],
        unique=False,
        schema="gleaner",
        postgresql_where=sa.text("state IN ('queued', 'running', 'quarantined')"),
    )
    op.create_index(
        "chunks_lease_idx",
        "chunks",
        ["lease_until"],
        unique=False,
        schema="gleaner",
        postgresql_where=sa.text("state = 'running'"),
    )
    op.create_index(
        "chunks_quarantined_idx",
        "chunks",
        ["job_id", "chunk_no"],
        unique=False,
        schema="gleaner",
        postgresql_where=sa.text("state = 'quarantined'"),
    )
    op.create_table(
        "label_history",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("ordinal", sa.BigInteger(), nullable=False),
        sa.Column("row", postgresql.JSONB(), nullable=False),
        sa.Column("retried_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("id", name="label_history_pkey"),
        schema="gleaner",
    )
    op.create_index(
        "label_history_job_id_ordinal_idx", "label_history", ["job_id", "ordinal"], unique=False, schema="gleaner"
    )


def downgrade() -> None:
    op.drop_index("label_history_job_id_ordinal_idx", table_name="label_history", schema="gleaner")
    op.drop_table("label_history", schema="gleaner")
    op.drop_index("chunks_quarantined_idx", table_name="chunks", schema="gleaner")
    op.drop_index("chunks_lease_idx", table_name="chunks", schema="gleaner")
    op.drop_index("chunks_open_idx", table_name="chunks", schema="gleaner")
    op.drop_index("jobs_live_idx", table_name="jobs", schema="gleaner")
    op.execute("UPDATE gleaner.labels SET engine_id = 0 WHERE engine_id IS NULL")
    op.alter_column("labels", "engine_id", existing_type=sa.BigInteger(), nullable=False, schema="gleaner")
    op.drop_column("chunks", "failures_alone", schema="gleaner")
    op.drop_column("chunks", "alone", schema="gleaner")
    op.drop_column("jobs", "state_reason", schema="gleaner")
