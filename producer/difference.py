"""What a corpus has that the one before it under the same name has not."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from psycopg import sql

from schemas.database import Connection

# A corpus of new documents alone stands on the corpus that it was compared with: the chain goes back to a whole one.
_STATE = sql.SQL(
    """
    WITH RECURSIVE chain AS (
        SELECT id, base_id, selection, 0 AS depth FROM gleaner.corpora WHERE id = {base}
        UNION ALL
        SELECT corpus.id, corpus.base_id, corpus.selection, chain.depth + 1
        FROM chain JOIN gleaner.corpora AS corpus ON corpus.id = chain.base_id
        WHERE chain.selection ? 'only_new'
    )
    SELECT DISTINCT ON (external_id) external_id, content_hash, meta, gone FROM (
        SELECT document.external_id, document.content_hash, document.meta, false AS gone, chain.depth
        FROM chain JOIN gleaner.documents AS document ON document.corpus_id = chain.id
        UNION ALL
        SELECT removed.external_id, NULL, NULL, true, chain.depth
        FROM chain JOIN gleaner.corpus_removed AS removed ON removed.corpus_id = chain.id
    ) AS known ORDER BY external_id, depth
    """
)
_KNOWN = sql.SQL("CREATE TEMP TABLE known ON COMMIT DROP AS SELECT * FROM ({state}) AS state WHERE NOT gone")
_COUNT = sql.SQL(
    """
    SELECT count(*) FILTER (WHERE known.external_id IS NULL) AS added,
        count(*) FILTER (WHERE document.external_id IS NULL) AS removed,
        count(*) FILTER (WHERE document.content_hash <> known.content_hash OR document.meta <> known.meta) AS changed
    FROM (SELECT external_id, content_hash, meta FROM {table} WHERE corpus_id = {corpus}) AS document
    FULL JOIN known USING (external_id)
    """
)
_REMOVED = sql.SQL(
    """
    INSERT INTO gleaner.corpus_removed (corpus_id, external_id)
    SELECT {corpus}, known.external_id FROM known
    WHERE NOT EXISTS (
        SELECT FROM {table} AS document
        WHERE document.corpus_id = {corpus} AND document.external_id = known.external_id
    )
    """
)
_UNCHANGED = sql.SQL(
    """
    DELETE FROM {table} AS document USING known
    WHERE document.corpus_id = {corpus} AND document.external_id = known.external_id
      AND document.content_hash = known.content_hash AND document.meta = known.meta
    """
)


@dataclass(frozen=True, slots=True)
class Difference:
    """Documents by their ids: those of one corpus that another has not, and the other way round. ``changed``: the same
    id with another text or other metadata."""

    base: int
    base_name: str
    added: int
    removed: int
    changed: int

    def __str__(self) -> str:
        return f"+{self.added:,} -{self.removed:,} ~{self.changed:,} documents"

    def as_json(self) -> dict[str, Any]:
        """For the table of corpora."""
        return asdict(self)


def compare(
    connection: Connection, table: sql.Composable, corpus_id: int, base: Mapping[str, Any], keep_new_only: bool
) -> Difference:
    """Compare the documents in ``table`` with what was known under the same name. In the transaction that loads them.

    :param base: the corpus to compare with: its ``id`` and ``name``.
    :param keep_new_only: take out what has not changed, and note which ids are gone.
    """
    names = {"table": table, "corpus": sql.Literal(corpus_id)}
    connection.execute("SET LOCAL work_mem = '64MB'")
    connection.execute(_KNOWN.format(state=_STATE.format(base=sql.Literal(base["id"]))))
    connection.execute("ANALYZE known")
    counts = connection.execute(_COUNT.format(**names)).fetchone()
    assert counts is not None
    if keep_new_only:
        connection.execute(_REMOVED.format(**names))
        connection.execute(_UNCHANGED.format(**names))
    return Difference(base["id"], base["name"], **counts)
