"""How a table is written, told by its beginning: delimiter, quotes, escapes, and where its header is."""

import csv
import io
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from schemas.errors import UsageError

#: Tried in this order: of two that fit alike the first wins.
DELIMITERS = {",": "comma", "\t": "tab", ";": "semicolon", "|": "bar"}
#: Rows that a dialect and a header are told by.
HEADER_ROWS = 200
#: Rows above a header at most: titles of a report.
_TITLE_ROWS = 20
#: Characters of the longest name of a column: what is longer is a text.
_NAME_CHARS = 100
#: Share of a column's cells that must be alike for it to say whether the row above them is one of them.
_ALIKE = 0.9
#: Cells and characters of a header that are shown.
_SHOWN_CELLS, _SHOWN_CHARS = 5, 40
#: How Excel names the delimiter, in a line of its own above the table.
_NAMED = re.compile(r"sep=([^\r\n])?(?=[\r\n]|\Z)")
_DIGITS = re.compile(r"\d+")
_YEAR = re.compile(r"(1[5-9]|2[01])\d\d")


@dataclass(frozen=True, slots=True)
class Dialect:
    """How cells and rows are told apart. ``header``: rows above the first record; 0 for none, then columns are
    ``column_1`` and so on."""

    delimiter: str
    quoted: bool = True  #: a cell in double quotes may hold delimiters and line ends, and doubles its own quotes
    escaped: bool = False  #: a backslash takes away the meaning of what follows
    header: int = 1
    #: Cells of what may be a header or a record.
    doubtful: tuple[str, ...] = field(default=(), repr=False, compare=False)

    @property
    def words(self) -> str:
        """The dialect for people."""
        name = DELIMITERS.get(self.delimiter, repr(self.delimiter))
        cells = "quoted cells" if self.quoted else "no quotes"
        escapes = ", backslash escapes" if self.escaped else ""
        return f"{name}, {cells}{escapes}, {header_words(self.header, self.doubtful)}"

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
    named = _NAMED.match(sample)
    if named:
        # A tab may have been lost at the end of the line.
        delimiter = delimiter or named.group(1) or "\t"
    best, evenness = Dialect(delimiter or ","), -1.0
    for candidate in _candidates(sample, delimiter):
        rows = table_rows(sample, candidate, whole)[1 if named else 0 :]
        width, count = Counter(map(len, rows)).most_common(1)[0] if rows else (0, 0)
        if width < 2 and delimiter is None:
            continue
        share = count / len(rows) if rows else 0.0
        if share > evenness:
            best, evenness = candidate, share
    rows = table_rows(sample, best, whole)[1 if named else 0 :]
    found, doubtful = header_row(rows, header)
    return replace(best, header=found + bool(named and found), doubtful=doubtful), max(0.0, evenness)


def names_delimiter(line: str) -> bool:
    """Whether a file's first line is none of the table, but names its delimiter: ``sep=;``."""
    return _NAMED.match(line) is not None


def header_words(header: int, doubtful: tuple[str, ...]) -> str:
    """The header for people, as :func:`header_row` found it."""
    if not header:
        return "no header" + (" (--header if the first row names the columns)" if doubtful else "")
    cells = [cell if len(cell) <= _SHOWN_CHARS else cell[:_SHOWN_CHARS] + "..." for cell in doubtful[:_SHOWN_CELLS]]
    shown = ", ".join(map(repr, cells)) + (", ..." if len(doubtful) > _SHOWN_CELLS else "")
    return f"header in row {header}" + (f" ({shown}: --no-header if it is a record)" if doubtful else "")


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


def table_rows(sample: str, dialect: Dialect, whole: bool) -> list[list[str]]:
    """The first rows of a sample; a row that is none in this dialect has one empty cell.

    :param whole: whether the sample is all there is; else its last row may be cut and is left out.
    """
    reader = csv.reader(io.StringIO(sample, newline=""), **dialect.arguments)
    rows: list[list[str]] = []
    while len(rows) < HEADER_ROWS + 1:
        try:
            row = next(reader)
        except StopIteration:
            break
        except csv.Error:
            row = [""]  # counts against the dialect
        if row:
            rows.append(row)
    return rows if whole or len(rows) <= 1 else rows[:-1]


def header_row(rows: list[list[str]], header: bool | None) -> tuple[int, tuple[str, ...]]:
    """How many of the rows stand above the first record, the last of them the header; 0 for no header. And the cells
    of the first row, where it may be the other way round: where the rows below do not say that it is a header.

    :param header: whether there is one, if it is known.
    """
    if header is False or not rows:
        return 0, ()
    first = _first_full_row(rows)
    if header is True:
        return first + 1, ()
    names = rows[first]
    numeric = all(_is_number(cell) for cell in names)
    texts = any(len(cell) > _NAME_CHARS or "\n" in cell for cell in names)
    repeated = len(set(names)) < len(names) and len(names) > 2
    below = [row for row in rows[first + 1 :] if len(row) == len(names)]
    told = [_tells(name, [row[column] for row in below]) for column, name in enumerate(names)] if below else []
    if numeric or texts or (first == 0 and repeated and len(rows) > 1) or "record" in told:
        return 0, tuple(names)
    return first + 1, () if "header" in told or not below else tuple(names)


def _tells(name: str, column: list[str]) -> str:
    """What a column says of the cell on top of it: that it is one more of them (``record``), that it is something else
    (``header``), or nothing: by numbers and by what has digits in the same places, which names of columns seldom are.
    """
    shape = _shape(name)
    shapes = Counter(_shape(cell) for cell in column if cell)
    alike, count = shapes.most_common(1)[0] if shapes else ("", 0)
    if "9" not in alike or count < _ALIKE * shapes.total():
        return ""
    if "9" not in shape:
        return "header"
    # Years are names of columns too, of what was counted in them.
    years = all(_YEAR.fullmatch(cell) for cell in column)
    return "record" if shape == alike and (years or not _YEAR.fullmatch(name)) else ""


def _shape(cell: str) -> str:
    return "9" if _is_number(cell) else _DIGITS.sub("9", cell.strip())


def _first_full_row(rows: list[list[str]]) -> int:
    """The header, where titles stand above it: rows that are mostly empty, above the first that is full."""
    if not _is_title(rows[0]):
        return 0
    width = Counter(map(len, rows)).most_common(1)[0][0]
    for number, row in enumerate(islice(rows, _TITLE_ROWS)):
        if len(row) == width and all(cell.strip() for cell in row) and len(set(row)) == len(row):
            return number
    return 0


def _is_title(row: list[str]) -> bool:
    if len(row) < 2:
        return False
    empty = sum(not cell.strip() for cell in row)
    return 2 * empty > len(row) or (empty == len(row) - 1 and bool(row[0].strip()))


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
