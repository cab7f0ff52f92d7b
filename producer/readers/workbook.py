"""A sheet of an Excel or OpenDocument workbook."""

from collections.abc import Iterator
from typing import Any

from producer.readers.base import Advance, ReadOptions, Record, library
from producer.readers.dialect import HEADER_ROWS, column_names, header_row, header_words
from producer.readers.file import CorpusFile
from producer.readers.plain import plain
from schemas.errors import UsageError


class WorkbookReader:
    """Reads one sheet: the only one, the only one that is not empty, or ``--sheet``.

    A sheet is held in memory as a whole: it has 1,048,576 rows at most, and the format allows no less.
    """

    unit = "row"

    def __init__(self, file: CorpusFile, options: ReadOptions) -> None:
        self._file = file
        self._library = library("python_calamine", "python-calamine", f"{file.name}: a workbook")
        with self._file.on_disk() as path:
            self._book = self._opened(str(path))
            self._sheet = self._chosen(options.sheet)
            self._rows: list[list[Any]] = self._book.get_sheet_by_name(self._sheet).to_python(skip_empty_area=False)
        first = [["" if cell == "" else str(_number(plain(cell))) for cell in row] for row in self._rows[:HEADER_ROWS]]
        #: Rows above the first record; empty ones count.
        above = next((number for number, row in enumerate(first) if any(row)), 0)
        found, doubtful = header_row(first[above:], options.header)
        self._header = found and above + found
        self.uri = file.uri
        self.size = file.size
        self.format = f"workbook/2 {self._sheet} {self._header}"
        self.notes = (f"format: workbook, sheet {self._sheet}, {header_words(self._header, doubtful)}",)

    def digest(self, advance: Advance) -> str:
        """As :meth:`Reader.digest`."""
        return self._file.digest(advance)

    def records(self, advance: Advance) -> Iterator[Record]:
        """As :meth:`Reader.records`. Empty rows are skipped; empty cells are null."""
        header = self._rows[self._header - 1] if self._header else [""] * len(self._rows[0])
        names = column_names([str(_number(plain(cell))) for cell in header])
        position = 0
        for row_no, cells in enumerate(self._rows[self._header :], start=self._header + 1):
            values = [None if value == "" else _number(plain(value)) for value in cells]
            if all(value is None for value in values):
                continue
            yield Record(position, row_no, dict(zip(names, values, strict=False)))
            position += 1
            advance(self.size * row_no // len(self._rows))

    def _opened(self, path: str) -> Any:
        try:
            return self._library.CalamineWorkbook.from_path(path)
        except Exception as error:
            if type(error).__module__.partition(".")[0] not in ("python_calamine", "builtins"):
                raise
            raise UsageError(f"{self._file.name} is no workbook that can be read: {error}") from None

    def _chosen(self, sheet: str | None) -> str:
        names: list[str] = self._book.sheet_names
        if sheet is not None:
            if sheet not in names:
                raise UsageError(
                    f"{self._file.name} has no sheet {sheet!r}: name one with --sheet ({', '.join(names)})"
                )
            return sheet
        filled = [name for name in names if self._book.get_sheet_by_name(name).height > 0]
        if len(filled) != 1:
            which = f"{len(filled):,} sheets with rows" if filled else "no sheet with rows"
            raise UsageError(f"{self._file.name} has {which}: name one with --sheet ({', '.join(names)})")
        return filled[0]


def _number(value: Any) -> Any:
    # A workbook knows only doubles: what was typed as 7 comes as 7.0.
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**53 else value
