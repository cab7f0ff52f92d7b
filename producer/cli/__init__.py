"""The command ``producer``: one module a command, imported when it is called."""

import os
import signal
import sys
from typing import Any

import typer

from schemas.commands import DeferredGroup, VersionOption, empty_argument
from schemas.errors import DatabaseNotMigrated, GleanerError, UsageError
from schemas.printable import printable

#: Each command with the first paragraph of its help, in the order of their use.
COMMANDS = {
    "preview": "Show what the model will be asked: schema, prompts and their tokens. Without --run nothing is written.",
    "estimate": "Say what a job would take: tokens, over-long documents, GPU hours, wall time and money. Writes "
    "nothing.",
    "enqueue": "Load a corpus, freeze the label spec, and publish the job's chunks to the workers.",
    "status": "Show where a job stands: total = pending + rows by outcome, or exit 1.",
    "watch": "Show a job's progress until it is done (exit 0) or cancelled (exit 1). Watching changes nothing.",
    "jobs": "List all jobs, the newest first; previews aside.",
    "pause": "Pause a job: no chunk of it is claimed until `producer resume`; chunks in work are finished.",
    "resume": "Let a paused job go on, whoever paused it, and publish messages for the chunks that wait.",
    "priority": "Set a job's priority: of the jobs for a model, chunks of the one with the highest are labelled first.",
    "cancel": "Cancel a job: finished rows stay, requests in work are aborted, every other document gets the row "
    "`cancelled`.",
    "retry": "Try rows of a job again that has ended: only those, in new chunks. What they were is kept as history.",
    "reconcile": "Keep jobs going: take chunks back from dead workers, replace lost messages, find poison, end jobs.",
    "schemas": "List the built-in label schemas, and the label specs in the database.",
    "doctor": "Check the settings, Postgres, its tables and the broker, and list all settings; exit 1 if something is "
    "wrong.",
    "db": "Create and check the tables of this version.",
}

#: A shell's code for a program that a signal ended is this and the signal's number.
_SIGNALLED = 128
#: How the SQLSTATEs begin with which Postgres ends a connection; others are about the statement.
_LOST = ("08", "57P")


class _Ended(KeyboardInterrupt):
    """SIGTERM or SIGHUP, which end a command as Ctrl-C does: temporary files are removed, and what Postgres is at is
    cancelled."""

    def __init__(self, number: int) -> None:
        self.number = number


class CommandGroup(DeferredGroup):
    """Turns errors into one line and an exit code."""

    package = "producer.cli"
    summaries = COMMANDS

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except GleanerError as error:
            raise typer.Exit(_fail(str(error), error.exit_code)) from None
        except KeyboardInterrupt as interrupt:
            number = interrupt.number if isinstance(interrupt, _Ended) else signal.SIGINT
            if sys.stderr.isatty():
                print(file=sys.stderr)  # the terminal has written ^C where the cursor was
            message = "run the same command again to continue"
            raise typer.Exit(_fail(message, _SIGNALLED + number, "interrupted")) from None
        except BrokenPipeError:
            # Whoever read our output has had enough; the interpreter would complain as it flushes at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(_SIGNALLED + signal.SIGPIPE) from None
        except OSError as error:  # a full disk, a file taken away
            place = f"{error.filename}: " if error.filename else ""
            raise typer.Exit(_fail(f"{place}{error.strerror or error}", GleanerError.exit_code)) from None
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


@app.callback(epilog="Example: producer enqueue corpus.jsonl --schema papers --text-field abstract")
def _root(_: VersionOption = False) -> None:
    """Give documents to Gleaner's workers to label, and see what became of them.

    With --json stdout holds the answer alone; errors are one line of text on stderr.

    Exit codes: 0 done, 1 failed, 2 wrong use, 130 interrupted (SIGTERM 143, SIGHUP 129).
    """


def main() -> None:
    """Run the command line."""
    _mend_streams()
    if empty := empty_argument(sys.argv[1:]):
        sys.exit(_fail(empty, UsageError.exit_code))
    _heed_signals()
    app()


def _heed_signals() -> None:
    """Let SIGTERM and SIGHUP end a command in order, but for one that is ignored, as under nohup."""

    def end(number: int, _: object) -> None:
        raise _Ended(number)

    for signum in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(signum) is signal.SIG_DFL:
            signal.signal(signum, end)


def _mend_streams() -> None:
    """Take any output: what the locale's encoding has not is escaped, and a stream that was closed swallows it."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8"))
        else:
            stream.reconfigure(errors="backslashreplace")
