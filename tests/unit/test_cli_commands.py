"""Help and wrong names need no command: what stands for it says the same, and loads nothing that it needs."""

import importlib
import subprocess
import sys

import pytest
import typer

import producer.cli
import worker.cli

PROGRAMS = {"producer": producer.cli, "worker": worker.cli}
#: What commands load, each for a reason of its own. (Typer may load pydantic, to read arguments.)
LIBRARIES = {"aiosql", "alembic", "celery", "jsonschema", "kombu", "psycopg", "redis", "sqlalchemy"}
#: Arguments that call no command, the exit code, and a word of stdout.
NO_COMMAND = [("--help", 0, "Usage"), ("--version", 0, "gleaner"), ("x", 2, "")]


@pytest.mark.parametrize(("program", "name"), [(p, name) for p, cli in PROGRAMS.items() for name in cli.COMMANDS])
def test_what_stands_for_a_command_says_what_its_help_says(program: str, name: str) -> None:
    module = importlib.import_module(f"{program}.cli.{name}")
    shown = typer.main.get_command(module.app).help
    assert shown is not None
    assert " ".join(shown.split("\n\n")[0].split()) == PROGRAMS[program].COMMANDS[name]


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize(("argument", "code", "word"), NO_COMMAND)
def test_what_concerns_no_command_loads_no_library(program: str, argument: str, code: int, word: str) -> None:
    call = [sys.executable, "-X", "importtime", "-m", program, argument]
    done = subprocess.run(call, capture_output=True, text=True, encoding="utf-8", check=False)
    modules = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert (done.returncode, word in done.stdout, "typer.core" in modules) == (code, True, True)
    assert LIBRARIES & {module.partition(".")[0] for module in modules} == set()
