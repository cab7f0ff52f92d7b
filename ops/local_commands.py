"""The commands of ``python -m ops.local``: the local stack up and down, and the demo.

``up`` leaves the stack running; ``demo`` stops what it started. Ctrl-C or SIGTERM stops what the command
started and exits 130; a second one kills it.
"""

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Annotated

import psycopg
import typer
from dotenv import dotenv_values
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from ops.demo_report import print_report
from ops.service import Service
from ops.stack import Engine, Stack, StackError
from schemas.env_files import ENV_FILES
from schemas.errors import GleanerError
from schemas.settings import load_settings

#: Exit code after Ctrl-C or SIGTERM, as a shell has it for SIGINT.
INTERRUPTED = 130
#: Seconds that `producer watch` gets to put the terminal back in order.
WATCH_STOP_S = 2.0
#: Seconds between two looks at whether the demo's worker has been given up, or its watch has ended.
WATCH_LOOK_S = 0.1
#: Small, so that the demo's few documents are several chunks and its progress moves.
DEMO_CHUNK_SIZE = 16
DEMO_CORPUS = Path(__file__).parent / "demo" / "corpus.jsonl"
#: Closing a terminal stops the command as Ctrl-C does.
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: Lines of each log that `logs` shows.
LOG_LINES = 40

#: Columns of the tables where there is no terminal to ask, as in a log.
LOG_WIDTH = 110

console = Console(highlight=False, width=None if sys.stdout.isatty() else LOG_WIDTH)
app = typer.Typer(
    help="The local stack: Postgres, Valkey, a worker, the reconciler and Flower on this machine.",
    no_args_is_help=True,
    add_completion=False,
    # Their tables of local variables would show passwords.
    pretty_exceptions_enable=False,
)
EngineOption = Annotated[Engine, typer.Option(help="vllm: a real small model. stub: made-up labels, at once.")]


class _KillNow(BaseException):
    """The second signal: stop being polite."""


@contextmanager
def _guarded(stack: Stack, again: str) -> Iterator[None]:
    """Stop what this run started when it fails or is signalled; turn errors into a line and an exit code.

    :param again: what to tell a user who interrupts to run.
    """
    signals = 0
    stopping = False

    def handle(_signum: int, _frame: FrameType | None) -> None:
        nonlocal signals
        signals += 1
        if signals > 1:
            raise _KillNow
        if not stopping:
            raise KeyboardInterrupt

    previous = {signum: signal.signal(signum, handle) for signum in STOP_SIGNALS}
    try:
        try:
            yield
        except KeyboardInterrupt:
            stopping = True
            console.print("\nStopping what this run started; press Ctrl-C again to kill it.")
            stack.stop_started()
            console.print(f"Stopped. All data is kept: run {again} again to finish.")
            raise typer.Exit(INTERRUPTED) from None
        except (GleanerError, psycopg.Error) as error:
            stopping = True
            console.print(f"Failed: {error}", style="red", markup=False, soft_wrap=True)
            stack.stop_started()
            raise typer.Exit(getattr(error, "exit_code", 1)) from None
        except _KillNow:
            raise  # it came while the first signal was on its way here
        except BaseException:
            stopping = True
            stack.stop_started()
            raise
    except _KillNow:
        for signum in STOP_SIGNALS:
            signal.signal(signum, signal.SIG_IGN)
        stack.kill_started()
        console.print("Killed. All data is kept.")
        raise typer.Exit(INTERRUPTED) from None
    finally:
        for signum, handler in previous.items():
            signal.signal(signum, handler)


@contextmanager
def _reporting() -> Iterator[Callable[[str], None]]:
    """A spinner with the step and the time it takes; plain lines where there is no terminal."""
    if not console.is_terminal:
        yield lambda step: console.print(f"{step} ...")
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("looking at the local stack", total=None)

        def report(step: str) -> None:
            progress.reset(task, description=step)

        yield report


def _state_dir() -> Path:
    """The state folder by itself, so that wrong settings, which don't matter here, keep no stack from stopping."""
    given: dict[str, str | None] = {}
    for source in (*ENV_FILES, None):
        # A file that can't be read holds no setting either.
        with suppress(OSError, UnicodeDecodeError):
            found = dict(os.environ) if source is None else dotenv_values(source)
            given |= {name.upper(): value for name, value in found.items() if value}
    return Path(given.get("GLEANER_STATE_DIR") or ".gleaner")


def _open_stack(*, to_start: bool = False) -> Stack:
    """The stack of this folder.

    :param to_start: whether its parts will be started, and so will read the settings, which must be valid.
    """
    try:
        return Stack(load_settings().state_dir if to_start else _state_dir())
    except GleanerError as error:
        console.print(f"Failed: {error}", style="red", markup=False, soft_wrap=True)
        raise typer.Exit(error.exit_code) from None


def _make(target: str, engine: Engine) -> str:
    """The command that runs a target of the Makefile, whose engine is vllm unless said otherwise."""
    return f"make {target}" if engine is Engine.VLLM else f"make {target} ENGINE={engine}"


def _psql_line(stack: Stack) -> str:
    return shlex.join([str(stack.postgres.psql), stack.postgres.analyst_url])


def _print_addresses(stack: Stack) -> None:
    environment = stack.environment
    lines = {
        "Flower": stack.flower_problem
        or f"{stack.flower_url}   user {environment['GLEANER_FLOWER_USER']}, "
        f"password {environment['GLEANER_FLOWER_PASSWORD']}",
        "psql": _psql_line(stack),
        "Logs": str(stack.logs),
        "Settings": f"{stack.env_file} (`producer` and `worker` read it from this folder)",
    }
    for name, line in lines.items():
        # Whole lines, however narrow the terminal is: they are there to be copied.
        console.print(f"{name:9} {line}", soft_wrap=True, markup=False)


@app.command()
def up(engine: EngineOption = Engine.VLLM) -> None:
    """Start the stack and leave it running; when it runs, print its addresses.

    Example: python -m ops.local up --engine stub
    """
    stack = _open_stack(to_start=True)
    with _guarded(stack, _make("up", engine)), stack.exclusively():
        with _reporting() as report:
            stack.start(engine, report)
        console.print(f"The local stack is up with engine {engine}. `make down` stops it.")
        _print_addresses(stack)


@app.command()
def down(
    delete_data: Annotated[
        bool, typer.Option("--delete-data", help="Also delete databases, logs and passwords.")
    ] = False,
) -> None:
    """Stop worker, reconciler, Flower, Valkey and Postgres, also after a crash of what started them. Data is kept.

    Example: python -m ops.local down
    """
    stack = _open_stack()
    try:
        if delete_data:
            stack.remove()
        else:
            stack.stop()
    except GleanerError as error:
        console.print(f"Failed: {error}", style="red", markup=False, soft_wrap=True)
        raise typer.Exit(error.exit_code) from None
    console.print("The local stack is down" + (", its data deleted." if delete_data else "; its data is kept."))


@app.command()
def status(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, part by part.")] = False,
) -> None:
    """Show which parts run, and what those said last that ended by themselves. Exits 1 when one does not run.

    Example: python -m ops.local status --json
    """
    stack = _open_stack()
    processes = {part.name: part.process if isinstance(part, Service) else part for part in stack.parts}
    parts = {
        name: {"running": process.running(), "pid": process.pid, "log": str(process.log_file)}
        for name, process in processes.items()
    }
    if as_json:
        print(json.dumps(parts))
    else:
        table = Table("part", "state", "pid", "log")
        for name, part in parts.items():
            table.add_row(name, "running" if part["running"] else "stopped", str(part["pid"] or ""), str(part["log"]))
        console.print(table)
        for name, process in processes.items():
            if process.ended_by_itself():
                said = f"{name} ended by itself. End of {process.log_file}:\n{process.log_tail()}"
                console.print(said, markup=False, soft_wrap=True)
    raise typer.Exit(0 if all(process.running() for process in processes.values()) else 1)


@app.command()
def logs(
    part: Annotated[
        str | None, typer.Argument(help="worker, reconciler, flower, valkey or postgres. Default: all.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as they grow, until Ctrl-C.")] = False,
) -> None:
    """Show the end of the parts' logs.

    Example: python -m ops.local logs worker -f
    """
    stack = _open_stack()
    names = [one.name.lower() for one in stack.parts]
    if part is not None and part not in names:
        raise typer.BadParameter(f"{part} is no part: one of {', '.join(names)}")
    files = [stack.logs / f"{name}.log" for name in names if part in (None, name)]
    files = [file for file in files if file.exists()]
    if not files:
        console.print("No logs yet: `make up` starts the stack.")
        raise typer.Exit(1)
    options = ["-F"] if follow else []
    os.execvp("tail", ["tail", "-n", str(LOG_LINES), *options, *map(str, files)])  # noqa: S606, S607


@app.command()
def demo(engine: EngineOption = Engine.VLLM) -> None:
    """Label a small corpus of invented abstracts, watch it, and show what came out.

    Stops what it started; a stack that was up stays up. Interrupted and run again, it finishes what was left.

    Example: python -m ops.local demo --engine stub
    """
    stack = _open_stack(to_start=True)
    with _guarded(stack, _make("demo", engine)), stack.exclusively():
        was_up = stack.labelling()
        with _reporting() as report:
            stack.start_services(engine, report)
            report("enqueueing the corpus")
            job, is_new, is_done = _enqueue(stack)
            if not is_done:
                stack.start_processes(engine, report)
        if is_done:
            console.print(f"Job {job} was finished before: nothing to label.")
        else:
            _watch(stack, job)
        console.print(stack.run_producer("status", str(job)), markup=False, soft_wrap=True)
        print_report(
            console,
            job,
            analyst_url=stack.postgres.analyst_url,
            owner_url=stack.postgres.url,
            with_speed=is_new,
        )
        if was_up:
            console.print("\nThe stack is still up: open Flower or psql.")
            _print_addresses(stack)
            return
        console.print("\nStopping what this demo started ...")
        stack.stop_started()
        console.print(f"Stopped; all data is kept. `{_make('up', engine)}` starts it again, with:")
        _print_addresses(stack)


def _enqueue(stack: Stack) -> tuple[int, bool, bool]:
    """Enqueue the demo's corpus; return the job's id, whether it is new, and whether it is done already."""
    arguments = ["enqueue", str(DEMO_CORPUS), "--schema", "papers", "--id-field", "id", "--text-field", "abstract"]
    said = stack.run_producer(*arguments, "--chunk-size", str(DEMO_CHUNK_SIZE), "--json")
    try:
        job = json.loads(said)
        return int(job["job_id"]), bool(job["created"]), job["state"] == "done"
    except (ValueError, KeyError, TypeError):
        raise StackError(f"`producer enqueue --json` described no job but said: {said!r}") from None


def _watch(stack: Stack, job: int) -> None:
    """Show the job's progress in this terminal until it is done."""
    command = stack.producer_command("watch", str(job))
    with subprocess.Popen(command, env=stack.process_environment()) as watch:
        try:
            while (code := watch.poll()) is None:
                # One that was given up labels nothing any more.
                stack.require(stack.worker, WATCH_LOOK_S)
        except BaseException:
            watch.terminate()
            try:
                watch.wait(WATCH_STOP_S)
            except subprocess.TimeoutExpired:
                watch.kill()
            console.show_cursor(True)
            raise
    if code != 0:
        raise StackError(f"`producer watch {job}` failed (exit {code})")
