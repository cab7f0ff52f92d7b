"""How a CSV file is written, told by its beginning: delimiter, quotes, escapes, and where its header is."""

import csv
import io
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from schemas.errors import UsageError

#: Tried in this order: of two that fit alike the first wins.
DELIMITERS = {",": "comma", "\t": "tab", ";": "semicolon", "|": "bar"}
#: Rows that a dialect and a header are told by.
_ROWS = 200
#: Rows above a header at most: titles of a report.
_TITLE_ROWS = 20
#: Characters of the longest name of a column: what is longer is a text.
_NAME_CHARS = 100


@dataclass(frozen=True, slots=True)
class Dialect:
    """How cells and rows are told apart. ``header``: rows above the first record; 0 for none, then columns are
    ``column_1`` and so on."""

    delimiter: str
    quoted: bool = True  #: a cell in double quotes may hold delimiters and line ends, and doubles its own quotes
    escaped: bool = False  #: a backslash takes away the meaning of what follows
    header: int = 1

    @property
    def words(self) -> str:
        """The dialect for people."""
        name = DELIMITERS.get(self.delimiter, repr(self.delimiter))
        cells = "quoted cells" if self.quoted else "no quotes"
        header = {0: "no header", 1: "header in row 1"}.get(self.header, f"header in row {self.header}")
        return f"{name}, {cells}{', backslash escapes' if self.escaped else ''}, {header}"

    @property
    def arguments(self) -> dict[str, Any]:
        """For :func:`csv.reader`."""
        return {
            "delimiter": self.delimiter,
            "quoting": csv.QUOTE_MINIMAL if self.quoted else csv.QUOTE_NONE,
            "quotechar": '"' if self.quoted else None,
            "escapechar": "\\" if self.escaped else None,
            "strict": True,
        }


def detect_dialect(sample: str, whole: bool, delimiter: str | None, header: bool | None) -> tuple[Dialect, float]:
    """The dialect in which a sample makes the most even table, and how even that is, from 0 to 1.

    :param whole: whether the sample is all there is; else its last row may be cut and does not count.
    :param delimiter: the only one to try. :param header: whether there is one, if it is known.
    """
    best, evenness = Dialect(delimiter or ","), -1.0
    for candidate in _candidates(sample, delimiter):
        rows = _rows(sample, candidate, whole)
        width, count = Counter(map(len, rows)).most_common(1)[0] if rows else (0, 0)
        if width < 2 and delimiter is None:
            continue
        share = count / len(rows) if rows else 0.0
        if share > evenness:
            best, evenness = candidate, share
    return replace(best, header=_header_row(_rows(sample, best, whole), header)), max(0.0, evenness)


def _candidates(sample: str, delimiter: str | None) -> Iterator[Dialect]:
    for mark in [delimiter] if delimiter else DELIMITERS:
        escapes = f"\\{mark}" in sample or "\\\n" in sample or "\\\r" in sample
        if escapes and not _quoted_cell(mark).search(sample):
            yield Dialect(mark, quoted=False, escaped=True)
        yield Dialect(mark)
        if '\\"' in sample:
            yield Dialect(mark, escaped=True)
        if '"' in sample and not _quoted_cell(mark).search(sample):
            yield Dialect(mark, quoted=False)


def _quoted_cell(mark: str) -> re.Pattern[str]:
    return re.compile(rf'(?:^|(?<!\\){re.escape(mark)})"[^"]*"(?:$|\r|{re.escape(mark)})', re.MULTILINE)


def _rows(sample: str, dialect: Dialect, whole: bool) -> list[list[str]]:
    reader = csv.reader(io.StringIO(sample, newline=""), **dialect.arguments)
    rows: list[list[str]] = []
    while len(rows) < _ROWS + 1:
        try:
            row = next(reader)
        except StopIteration:
            break
        except csv.Error:
            row = [""]  # counts against the dialect
        if row:
            rows.append(row)
    return rows if whole or len(rows) <= 1 else rows[:-1]


def _header_row(rows: list[list[str]], header: bool | None) -> int:
    if header is False or not rows:
        return 0
    first = _first_full_row(rows)
    if header is True:
        return first + 1
    names = rows[first]
    numeric = all(_is_number(cell) for cell in names)
    texts = any(len(cell) > _NAME_CHARS or "\n" in cell for cell in names)
    repeated = len(set(names)) < len(names) and len(names) > 2
    return 0 if numeric or texts or (first == 0 and repeated and len(rows) > 1) else first + 1


def _first_full_row(rows: list[list[str]]) -> int:
    """The header, where titles stand above it: rows that are mostly empty, above the first that is full."""
    if not _mostly_empty(rows[0]):
        return 0
    width = Counter(map(len, rows)).most_common(1)[0][0]
    for number, row in enumerate(islice(rows, _TITLE_ROWS)):
        if len(row) == width and all(cell.strip() for cell in row) and len(set(row)) == len(row):
            return number
    return 0


def _mostly_empty(row: list[str]) -> bool:
    return len(row) > 1 and 2 * sum(not cell.strip() for cell in row) > len(row)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def column_names(cells: list[str]) -> list[str]:
    """Names of columns that are all different: an empty one gets its number, a repeated one too."""
    names: list[str] = []
    for number, cell in enumerate(cells, start=1):
        name = cell.strip() or f"column_{number}"
        names.append(f"{name}_{number}" if name in names else name)
    return names


def check_delimiter(delimiter: str | None) -> str | None:
    """What ``--delimiter`` gives as a character.

    :raises UsageError: when it is not one.
    """
    if delimiter is None:
        return None
    named = {word: mark for mark, word in DELIMITERS.items()} | {"\\t": "\t"}
    mark = named.get(delimiter, delimiter)
    if len(mark) != 1 or mark in '\r\n"\x00':
        raise UsageError(f"--delimiter {delimiter!r}: give one character, or {', '.join(DELIMITERS.values())}")
    return mark
