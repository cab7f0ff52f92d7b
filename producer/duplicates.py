"""Of documents with one id, which stay; the others become rejects."""

from collections.abc import Callable
from enum import StrEnum

from psycopg import sql
from psycopg.rows import dict_row

from schemas.database import Connection

#: Duplicates fetched, and taken out, at a time.
_FETCH_ROWS = 1000

# Ids are counted in a hash over the corpus's rows as they lie on the disk. Postgres has no statistics of a corpus that
# is being loaded and takes it for one row: left alone it would walk the index of ids, a page of the table for each.
_COUNT = (
    "SET LOCAL enable_indexscan = off",
    "SET LOCAL enable_indexonlyscan = off",
    "SET LOCAL enable_sort = off",
    "SET LOCAL work_mem = '64MB'",
)
_RESET = (
    "SET LOCAL enable_indexscan = on",
    "SET LOCAL enable_indexonlyscan = on",
    "SET LOCAL enable_sort = on",
)
_TWINS = sql.SQL(
    "CREATE TEMP TABLE twins ON COMMIT DROP AS SELECT external_id, {kept}(ordinal) AS kept FROM {table}"
    " WHERE corpus_id = {corpus} GROUP BY external_id HAVING count(*) > 1"
)
_OTHERS = sql.SQL(
    "SELECT document.ordinal, twins.kept, document.external_id, left(document.text, 200) AS excerpt"
    " FROM twins JOIN {table} AS document ON document.corpus_id = {corpus}"
    " AND document.external_id = twins.external_id"
    " WHERE document.ordinal <> twins.kept ORDER BY document.ordinal"
)
# By key, not by a join: see above.
_DELETE = sql.SQL("DELETE FROM {table} WHERE corpus_id = {corpus} AND ordinal = ANY(%s)")


class OnDuplicate(StrEnum):
    """Which of several documents with one id stay."""

    FIRST = "first"
    LAST = "last"
    ALL = "all"


def remove_duplicates(
    connection: Connection,
    table: sql.Composable,
    corpus_id: int,
    policy: OnDuplicate,
    removed: Callable[[int, int, str, str], None],
) -> int:
    """Take duplicates out of the documents of a corpus. In the transaction that loads it.

    :param removed: told of each, in order: its ordinal, that of the one that stays, the id, and its beginning.
    :returns: how many were taken out.
    """
    if policy is OnDuplicate.ALL:
        return 0
    names = {"table": table, "corpus": sql.Literal(corpus_id)}
    kept = sql.SQL("min" if policy is OnDuplicate.FIRST else "max")
    for statement in _COUNT:
        connection.execute(statement)
    connection.execute(_TWINS.format(kept=kept, **names))
    for statement in _RESET:
        connection.execute(statement)
    connection.execute("ANALYZE twins")
    count = 0
    with connection.cursor("duplicates", row_factory=dict_row) as cursor:
        cursor.execute(_OTHERS.format(**names))
        while twins := cursor.fetchmany(_FETCH_ROWS):
            for twin in twins:
                removed(twin["ordinal"], twin["kept"], twin["external_id"], twin["excerpt"])
            connection.execute(_DELETE.format(**names), [[twin["ordinal"] for twin in twins]])
            count += len(twins)
    return count
