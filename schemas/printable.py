"""What is printed is text: a terminal acts on nothing that a name, an id or an excerpt holds."""

import logging
import re

#: What a terminal would act on, or show in another order than it stands: C0 and C1 controls, line and paragraph
#: separators, and marks that turn the direction of what follows. Names, ids and excerpts may hold any of them.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
_CONTROL_IN_LINES = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


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


def counted(count: int, noun: str) -> str:
    """``1 chunk``, ``2,000 chunks``."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")
