"""Arguments and options that several commands take."""

from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Any, TypeVar

import typer
from pydantic import ValidationError

from producer.cli.output import whole_number
from schemas.errors import UsageError
from schemas.outcomes import OverLong
from schemas.settings import Settings, load_settings, problem

#: Priorities lie between minus this and this: room for every order that people can tell apart.
MAX_PRIORITY = 1000

#: Options whose name is not that of their setting, by the setting.
_OPTIONS = {"engine_profile": "profile"}

_Choice = TypeVar("_Choice", bound=StrEnum)

JobArgument = Annotated[int, typer.Argument(parser=whole_number, metavar="JOB", help="Job id.", show_default=False)]
ChunkSizeOption = Annotated[
    int | None,
    typer.Option(parser=whole_number, metavar="<int>", help="Documents a chunk. Default: GLEANER_CHUNK_SIZE (256)."),
]


def one_of(choices: type[_Choice]) -> Callable[[str], _Choice]:
    """A parser of one of several words, with a message for people."""

    def parse(value: str) -> _Choice:
        try:
            return choices(value)
        except ValueError:
            raise typer.BadParameter(f"{value!r} is none of {', '.join(choices)}") from None

    return parse


OverLongOption = Annotated[
    OverLong,
    typer.Option(
        parser=one_of(OverLong),
        metavar="POLICY",
        help=f"What becomes of a document that does not fit the model's context: {', '.join(OverLong)}. Parts of "
        "one that is split are labelled each and make one row: of enums, booleans and numbers what most parts gave, of "
        "lists all items, of anything else the first that is not empty.",
    ),
]


def priority_number(value: str | int) -> int:
    """Parses a priority, with a message for people."""
    number = whole_number(value)
    if abs(number) > MAX_PRIORITY:
        raise typer.BadParameter(f"{number} is not between -{MAX_PRIORITY} and {MAX_PRIORITY}")
    return number


def settings_with(**options: Any) -> Settings:
    """The settings, with options of the same names winning over them; None stands for an option that was not given.
    The path of a model's files is left out where another model was asked for.

    :raises UsageError: names the option and what it takes.
    """
    given = {name: value for name, value in options.items() if value is not None}
    settings = load_settings()
    if not given:
        return settings
    known = settings.model_dump(exclude_unset=True)
    if given.get("model", settings.model) != settings.model:
        known.pop("model_path", None)  # the files of the model that is set, not of the one that was asked for
    try:
        return Settings(**{**known, **given})
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0])
        raise UsageError(f"--{_OPTIONS.get(name, name).replace('_', '-')}: {problem(first)}") from None
