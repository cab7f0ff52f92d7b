"""Of documents with one id, which stay; the others become rejects."""

from array import array
from collections.abc import Callable
from enum import StrEnum

from psycopg import sql
from psycopg.rows import dict_row

from schemas.database import Connection

#: Bits that say whether an id may have been there before: 64 MiB, whatever the corpus's size. Of 1,000,000 different
#: ids about 1,000 are suspected in vain, of 10,000,000 about 90,000.
_SEEN_BITS = 2**29
#: Documents that are looked at to confirm one suspect; with more suspects than a share of them, all ids are counted.
_FULL_SHARE = 0.05
#: Suspects, and duplicates, dealt with at a time.
_ROWS = 1000

_SUSPECTS = "CREATE TEMP TABLE suspects (external_id text) ON COMMIT DROP"
_SUSPECT = sql.SQL(
    "INSERT INTO suspects SELECT external_id FROM {table} WHERE corpus_id = {corpus} AND ordinal = ANY(%s)"
)
# What Postgres must not do: it has no statistics of a corpus that is being loaded, and takes it for one row.
_FIND = ("enable_hashjoin", "enable_mergejoin", "enable_seqscan")
_CONFIRM = sql.SQL(
    "CREATE TEMP TABLE twins ON COMMIT DROP AS SELECT document.external_id, {kept}(document.ordinal) AS kept"
    " FROM (SELECT DISTINCT external_id FROM suspects) AS suspect JOIN {table} AS document"
    " ON document.corpus_id = {corpus} AND document.external_id = suspect.external_id"
    " GROUP BY document.external_id HAVING count(*) > 1"
)
# Or all ids are counted in a hash over the corpus's rows as they lie on the disk.
_COUNT = ("enable_indexscan", "enable_indexonlyscan", "enable_sort")
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


class Duplicates:
    """Finds documents with an id that another has. Knows in constant memory which ids can't be such; the database
    knows the rest.

    :param table: where the documents are. ``indexed``: whether it has an index of their ids.
    """

    def __init__(self, table: sql.Composable, corpus_id: int, policy: OnDuplicate, *, indexed: bool) -> None:
        self._names = {"table": table, "corpus": sql.Literal(corpus_id)}
        self._policy = policy
        self._indexed = indexed
        self._seen = bytearray(_SEEN_BITS // 8)
        self._suspects: array[int] = array("q")

    def note(self, external_id: str, ordinal: int) -> None:
        """A document that is loaded."""
        bit = hash(external_id) % _SEEN_BITS
        place, mask = bit >> 3, 1 << (bit & 7)
        if self._seen[place] & mask:
            self._suspects.append(ordinal)
        else:
            self._seen[place] |= mask

    def remove(self, connection: Connection, documents: int, removed: Callable[[int, int, str, str], None]) -> int:
        """Take duplicates out of the documents of the corpus. In the transaction that loads it.

        :param documents: how many there are.
        :param removed: told of each, in order: its ordinal, that of the one that stays, the id, and its beginning.
        :returns: how many were taken out.
        """
        self._seen = bytearray()
        if not self._suspects or self._policy is OnDuplicate.ALL:
            return 0
        self._find_twins(connection, documents)
        count = 0
        with connection.cursor("duplicates", row_factory=dict_row) as cursor:
            cursor.execute(_OTHERS.format(**self._names))
            while twins := cursor.fetchmany(_ROWS):
                for twin in twins:
                    removed(twin["ordinal"], twin["kept"], twin["external_id"], twin["excerpt"])
                connection.execute(_DELETE.format(**self._names), [[twin["ordinal"] for twin in twins]])
                count += len(twins)
        return count

    def _find_twins(self, connection: Connection, documents: int) -> None:
        kept = sql.SQL("min" if self._policy is OnDuplicate.FIRST else "max")
        find, plan = _TWINS, _COUNT
        if self._indexed and len(self._suspects) <= _FULL_SHARE * documents:
            find, plan = _CONFIRM, _FIND
            connection.execute(_SUSPECTS)
            for first in range(0, len(self._suspects), _ROWS):
                ordinals = list(self._suspects[first : first + _ROWS])
                connection.execute(_SUSPECT.format(**self._names), [ordinals])
            connection.execute("ANALYZE suspects")
        for name in plan:
            connection.execute(sql.SQL("SET LOCAL {} = off").format(sql.Identifier(name)))
        connection.execute("SET LOCAL work_mem = '64MB'")
        connection.execute(find.format(kept=kept, **self._names))
        for name in plan:
            connection.execute(sql.SQL("SET LOCAL {} = on").format(sql.Identifier(name)))
        connection.execute("ANALYZE twins")
