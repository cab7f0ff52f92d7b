"""The command `worker`: one module a command, imported when it is called."""

import sys

import typer

from schemas.commands import DeferredGroup, VersionOption, empty_argument
from schemas.errors import GleanerError, UsageError
from schemas.printable import printable

#: Each command with the first paragraph of its help.
COMMANDS = {
    "start": "Start the engine, then label chunks of this model's queue until SIGTERM (or Ctrl-C).",
    "check": "Start the engine, try it on a label schema, and say what a job may expect of this node.",
    "bench": "Measure this node's throughput: 1 document in flight, 2, 4 and so on, with grammar and without, prefix "
    "cache cold and warm.",
}


class CommandGroup(DeferredGroup):
    """The commands of a worker."""

    package = "worker.cli"
    summaries = COMMANDS


app = typer.Typer(
    name="worker",
    cls=CommandGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    # Here and at each command: paragraphs of help are wrapped to the terminal, not broken where the docstring is.
    rich_markup_mode="markdown",
)


@app.callback()
def _root(_: VersionOption = False) -> None:
    """Labels documents: takes chunks from the queue, runs them through its engine, writes rows to Postgres."""


def main() -> None:
    """Run the command line: an error that a user can mend is one line and an exit code."""
    try:
        if empty := empty_argument(sys.argv[1:]):
            raise UsageError(empty)
        app()
    except GleanerError as error:
        print(printable(f"error: {error}", lines=True), file=sys.stderr)
        sys.exit(error.exit_code)
