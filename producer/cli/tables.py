"""Tables for people. Rich takes as long to load as a job takes to be looked up: commands without a table go without."""

import sys

from rich.console import Console
from rich.table import Table

#: Columns where output goes to no terminal: wide enough that no table is cut.
PIPE_WIDTH = 200


def console() -> Console:
    """Stdout, for people. Text is printed as it is: names and documents are not markup."""
    return Console(markup=False, highlight=False, width=None if sys.stdout.isatty() else PIPE_WIDTH)


def table(*columns: str, folded: tuple[str, ...] = ()) -> Table:
    """A table without lines.

    :param folded: columns that go over several lines where the terminal is narrow; the others stay whole.
    """
    lines = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        lines.add_column(column, no_wrap=column not in folded, overflow="fold" if column in folded else "ellipsis")
    return lines
