"""Tables for people, as wide as the terminal. Rich measures and cuts text; its own tables take 0.6 ms a row."""

import shutil
import sys
from collections.abc import Sequence

import typer
from rich.cells import cell_len, set_cell_size

from producer.cli.output import say
from schemas.printable import printable

#: Columns where output goes to no terminal: wide enough that no table is cut.
PIPE_WIDTH = 200
#: Between two columns of a table.
_GAP = "  "


def output_width() -> int:
    """Columns that a line on stdout may have."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else PIPE_WIDTH


def show_table(columns: Sequence[str], rows: Sequence[Sequence[str]], cut: Sequence[str] = ()) -> None:
    """A table without lines on stdout, a line a row.

    :param rows: of as many cells as there are columns.
    :param cut: columns whose cells are cut where the terminal is narrow; the others stay whole.
    """
    rows = [list(map(printable, row)) for row in rows]
    widths = [max(map(cell_len, column)) for column in zip(columns, *rows, strict=True)]
    room = output_width() - len(_GAP) * (len(columns) - 1)
    # The widest gives way first, to no less than its name.
    while sum(widths) > room and (
        wide := [n for n, name in enumerate(columns) if name in cut and widths[n] > cell_len(name)]
    ):
        widths[max(wide, key=widths.__getitem__)] -= 1
    typer.secho(_line(columns, widths), bold=True)
    for row in rows:
        say(_line(list(map(_cut, row, widths)), widths))


def _cut(cell: str, width: int) -> str:
    return cell if cell_len(cell) <= width else set_cell_size(cell, width - 1) + "…"


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = (cell + " " * (width - cell_len(cell)) for cell, width in zip(cells, widths, strict=True))
    return _GAP.join(padded).rstrip()
