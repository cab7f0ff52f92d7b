"""The command ``producer``: one module a command, imported when it is used."""

import importlib
import os
import sys
from importlib import metadata
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from schemas.command_line import empty_argument, printable
from schemas.errors import DatabaseNotMigrated, GleanerError, UsageError

#: Each command's module holds its Typer app as ``app``. In the order of their use.
COMMANDS = {
    "preview": "producer.cli.preview",
    "estimate": "producer.cli.estimate",
    "enqueue": "producer.cli.enqueue",
    "status": "producer.cli.status",
    "watch": "producer.cli.watch",
    "jobs": "producer.cli.jobs",
    "pause": "producer.cli.pause",
    "resume": "producer.cli.resume",
    "priority": "producer.cli.priority",
    "cancel": "producer.cli.cancel",
    "retry": "producer.cli.retry",
    "reconcile": "producer.cli.reconcile",
    "schemas": "producer.cli.schemas",
    "doctor": "producer.cli.doctor",
    "db": "producer.cli.db",
}

#: What a shell reports for a program that SIGINT ended.
INTERRUPTED = 130
#: How the SQLSTATEs begin with which Postgres ends a connection; others are about the statement.
_LOST = ("08", "57P")


class CommandGroup(TyperGroup):
    """Imports a command when it is asked for, and turns errors into one line and an exit code."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        command = typer.main.get_command(importlib.import_module(COMMANDS[cmd_name]).app)
        command.name = cmd_name
        return command

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        # Typer suggests a near name from the commands that it knows, which are none before they are imported.
        if args and args[0] not in COMMANDS:
            self.commands.update({name: self.get_command(ctx, name) for name in COMMANDS})
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except GleanerError as error:
            raise typer.Exit(_fail(str(error), error.exit_code)) from None
        except KeyboardInterrupt:
            if sys.stderr.isatty():
                print(file=sys.stderr)  # the terminal has written ^C where the cursor was
            message = "run the same command again to continue"
            raise typer.Exit(_fail(message, INTERRUPTED, "interrupted")) from None
        except BrokenPipeError:
            # Whoever read our output has had enough; the interpreter would complain as it flushes at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(1) from None
        except OSError as error:  # a full disk, a file taken away
            raise typer.Exit(_fail(str(error), GleanerError.exit_code)) from None
        except Exception as error:
            found = _database_error(error)
            if found is None:
                raise
            raise typer.Exit(_fail(str(found), found.exit_code)) from None


def _fail(message: str, exit_code: int, what: str = "error") -> int:
    # One line, whatever a server or a file name put into the message.
    line = printable(f"{what}: " + " ".join(message.split()))
    encoding = sys.stderr.encoding or "utf-8"
    print(line.encode(encoding, "backslashreplace").decode(encoding), file=sys.stderr)
    return exit_code


def _database_error(error: Exception) -> GleanerError | None:
    """The error to show for what psycopg raised in the middle of a command; None for anything else."""
    if "psycopg" not in sys.modules:  # a command that never came to import it can't have failed in it
        return None
    from psycopg import OperationalError, errors  # noqa: PLC0415

    from schemas.database import database_address, unavailable  # noqa: PLC0415
    from schemas.settings import load_settings  # noqa: PLC0415

    if isinstance(error, errors.UndefinedTable | errors.UndefinedColumn | errors.InvalidSchemaName):
        return DatabaseNotMigrated("the database has not the tables of this version: run `producer db upgrade`.")
    if isinstance(error, OperationalError | errors.InsufficientPrivilege):
        settings, said = load_settings(), error.diag.message_primary
        if said is None or (error.sqlstate or "").startswith(_LOST):
            return unavailable(settings, error)
        return GleanerError(f"Postgres at {database_address(settings)} refused: {said}.")
    return None


app = typer.Typer(cls=CommandGroup, no_args_is_help=True, pretty_exceptions_enable=False)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"gleaner {metadata.version('gleaner')}")
        raise typer.Exit


@app.callback(epilog="Example: producer enqueue corpus.jsonl --schema papers --text-field abstract")
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Give documents to Gleaner's workers to label, and see what became of them.

    Exit codes: 0 done, 1 failed, 2 wrong use, 130 interrupted.
    """


def main() -> None:
    """Run the command line: the console script."""
    _mend_streams()
    if empty := empty_argument(sys.argv[1:]):
        sys.exit(_fail(empty, UsageError.exit_code))
    app()


def _mend_streams() -> None:
    """Take any output: what the locale's encoding has not is escaped, and a stream that was closed swallows it."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8"))
        else:
            stream.reconfigure(errors="backslashreplace")
