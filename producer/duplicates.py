"""Of documents with one id, which stay; the others become rejects."""

from array import array
from collections.abc import Callable
from enum import StrEnum

from psycopg import sql
from psycopg.rows import dict_row

from schemas.database import Connection

#: Ids that are told apart without asking the database, at four bytes each: 64 MiB, whatever the corpus's size. For a
#: larger corpus the database counts them, as it does wherever an id comes twice.
_SLOTS = 2**24
_MOST = 15_000_000
_SLOT_MASK = _SLOTS - 1
#: The part of an id's hash that is kept.
_MARK_MASK = 2**32 - 1
#: Duplicates fetched, and taken out, at a time.
_FETCH_ROWS = 1000

# Ids are counted in a hash over the corpus's rows as they lie on the disk. Postgres has no statistics of a corpus that
# is being loaded and takes it for one row: left alone it would walk the index of ids, a page of the table for each.
_NOT_BY = ("enable_indexscan", "enable_indexonlyscan", "enable_sort")
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
    """Finds documents with an id that another has: notices in constant memory whether there are any, and then asks the
    database which."""

    def __init__(self) -> None:
        self._marks = array("I", [0]) * _SLOTS
        self._left = _MOST
        self._suspected = False

    def note(self, external_id: str) -> None:
        """A document is loaded."""
        if self._suspected:
            return
        marks = self._marks
        number = hash(external_id)
        mark = number & _MARK_MASK or 1
        slot = number >> 32 & _SLOT_MASK
        while found := marks[slot]:
            if found == mark:  # the same id; of two different ones once in some thousand corpora
                self._suspected = True
                return
            slot = slot + 1 & _SLOT_MASK
        marks[slot] = mark
        self._left -= 1
        self._suspected = not self._left

    def remove(
        self,
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
        if not self._suspected or policy is OnDuplicate.ALL:
            return 0
        self._marks = array("I")
        names = {"table": table, "corpus": sql.Literal(corpus_id)}
        kept = sql.SQL("min" if policy is OnDuplicate.FIRST else "max")
        for name in _NOT_BY:
            connection.execute(sql.SQL("SET LOCAL {} = off").format(sql.Identifier(name)))
        connection.execute("SET LOCAL work_mem = '64MB'")
        connection.execute(_TWINS.format(kept=kept, **names))
        for name in _NOT_BY:
            connection.execute(sql.SQL("SET LOCAL {} = on").format(sql.Identifier(name)))
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
