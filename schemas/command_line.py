"""What both command lines hold to: what they print is text, and what they are given is something."""

import logging
import re
from collections.abc import Sequence

#: What a terminal would act on, or show in another order than it stands: C0 and C1 controls, line and paragraph
#: separators, and marks that turn the direction of what follows. Names, ids and excerpts may hold any of them.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
_CONTROL_IN_LINES = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
#: Options whose value may be white space.
_MAY_BE_BLANK = ("--delimiter",)


def printable(text: str, *, lines: bool = False) -> str:
    """Text with its control characters escaped, as ``\\x1b``.

    :param lines: leave line ends and tabs: of a text that is shown as it is, between lines of our own.
    """
    return (_CONTROL_IN_LINES if lines else _CONTROL).sub(lambda found: _escaped(found.group()), text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()


def log_printable(record: logging.LogRecord) -> bool:
    """A filter for handlers of logs: lets everything pass, with control characters escaped."""
    record.msg, record.args = printable(record.getMessage(), lines=True), None
    return True


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
