"""The command `worker`."""

import sys
from importlib.metadata import version
from typing import Annotated

import typer

from schemas.command_line import empty_argument, printable
from schemas.errors import GleanerError, UsageError
from worker.cli.bench import bench
from worker.cli.check import check
from worker.cli.start import start

app = typer.Typer(
    name="worker",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    # Paragraphs of help are wrapped to the terminal, not broken where the docstring is.
    rich_markup_mode="markdown",
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"gleaner {version('gleaner')}")
        raise typer.Exit


@app.callback()
def _options(
    _: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Labels documents: takes chunks from the queue, runs them through its engine, writes rows to Postgres."""


app.command(
    epilog="Example: GLEANER_MODEL=qwen3-8b GLEANER_MODEL_PATH=/models/qwen3-8b worker start --profile h200 --name gpu0"
)(start)
app.command(epilog="Example: worker check --schema papers --json")(check)
app.command(epilog="Example: worker bench sample.jsonl --schema papers --json bench.json")(bench)


def main() -> None:
    """The console script: an error that a user can mend is one line and an exit code."""
    try:
        if empty := empty_argument(sys.argv[1:]):
            raise UsageError(empty)
        app()
    except GleanerError as error:
        print(printable(f"error: {error}", lines=True), file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
