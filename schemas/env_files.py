"""Variables with our prefix, from env files and the process's environment."""

import os
from dataclasses import dataclass
from pathlib import Path

from dotenv import dotenv_values
from dotenv.parser import parse_stream

from schemas.errors import UsageError

ENV_PREFIX = "GLEANER_"

#: Read from the current directory, later ones win, the process's environment wins over both.
#: The first is written by ``make up`` so that the CLI finds the local stack without being told.
ENV_FILES = (".gleaner/local.env", ".env")


class SettingsError(UsageError):
    """A setting is missing, unknown or out of range; the message names the variable and what it takes."""


@dataclass(frozen=True)
class Given:
    """A variable as it was given, and where."""

    name: str
    value: str
    place: str

    @property
    def setting(self) -> str:
        """The name of the setting that it is for."""
        return self.name.lower().removeprefix(ENV_PREFIX.lower())


def given_variables() -> list[Given]:
    """Every variable with our prefix, from where it is read first to where it is read last.

    :raises SettingsError: for an env file that can't be read.
    """
    places: list[tuple[str, dict[str, str | None]]] = [(file, _variables(file)) for file in ENV_FILES]
    places.append(("the environment", dict(os.environ)))
    return [
        Given(name, value or "", place)
        for place, variables in places
        for name, value in variables.items()
        if name.upper().startswith(ENV_PREFIX)
    ]


def _variables(file: str) -> dict[str, str | None]:
    """The variables of an env file.

    :raises SettingsError: for one that may not be read or is not UTF-8, or with a line of ours that can't be read and
        would go unseen.
    """
    if not Path(file).is_file():
        return {}
    try:
        with Path(file).open(encoding="utf-8") as stream:
            lines = list(parse_stream(stream))
    except UnicodeDecodeError:
        raise SettingsError(f"{file} is not UTF-8: write it anew") from None
    except OSError as error:
        raise SettingsError(f"{file} can't be read: {error.strerror}") from None
    for line in lines:
        if line.error and ENV_PREFIX in line.original.string.upper():
            raise SettingsError(f"{file}, line {line.original.line}: can't be read: write NAME=value")
    return dotenv_values(file)
