"""How far a long step is, told to whoever shows it."""

from typing import Protocol


class Progress(Protocol):
    """Called now and then from a long step; must be quick."""

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Tell that ``done`` of ``total`` units of ``stage`` are done. ``stage`` is a word for people."""


def silent(stage: str, done: int, total: int) -> None:
    """The progress that nobody looks at."""
