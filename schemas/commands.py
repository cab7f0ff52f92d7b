"""Commands of a program, each imported when it is called: its libraries take longer to load than most commands run."""

import importlib
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup

#: Options whose value may be white space.
_MAY_BE_BLANK = ("--delimiter",)


class Deferred(TyperCommand):
    """Stands for a command until it is called: its name and summary are all that help and completion ask for.

    :param module: holds the command's Typer app as ``app``.
    """

    def __init__(self, name: str, module: str, summary: str) -> None:
        super().__init__(name, help=summary)
        self._module = module

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """The context of the command itself, which then runs in place of this one."""
        command = typer.main.get_command(importlib.import_module(self._module).app)
        command.name = self.name
        return command.make_context(info_name, args, parent, **extra)


class DeferredGroup(TyperGroup):
    """A program whose commands are modules of one package, named as they are.

    Subclasses say which: ``package``, and ``summaries``, by command the first paragraph of its help.
    """

    package: ClassVar[str]
    summaries: ClassVar[dict[str, str]]

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for name, summary in self.summaries.items():
            self.add_command(Deferred(name, f"{self.package}.{name}", summary))


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version  # noqa: PLC0415 (reads the descriptions of all that is installed)

        print(f"gleaner {version('gleaner')}")
        raise typer.Exit


VersionOption = Annotated[
    bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
]


def empty_argument(arguments: Sequence[str]) -> str | None:
    """What is wrong with the first argument of a command that is nothing but white space; None when there is none.

    A variable of a script that was not set leaves such a one. To take it for an option that was not given would do
    something else than was meant.
    """
    before = ""
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if argument.startswith("--") and equals:
            blank = value
        else:
            name, blank = before if before.startswith("-") else "", argument
        if not blank.strip() and (not blank or name not in _MAY_BE_BLANK):
            return f"{name or 'an argument'} is empty: give a value, or leave it out"
        before = argument
    return None
