"""How long the work takes to go on after a fault.

A fault is over when what was done has been undone: the process continued, the server up again, the job resumed; a
signal that ends a process is over at once. From then on the clock runs, until all of this has been seen:

- no chunk that was leased when the fault struck (for a fault of one worker: by that worker) still hangs: each is
  finished, free to be claimed, claimed anew, or its lease has been renewed;
- a chunk has been claimed since, if any waits;
- rows have been written since.
"""

from dataclasses import dataclass, field
from datetime import datetime

#: A chunk by job and number.
Key = tuple[int, int]


@dataclass(frozen=True)
class ChunkReading:
    """A chunk at one moment."""

    state: str
    attempt: int
    owner: str | None
    leased_until: datetime | None
    rows: int


@dataclass(frozen=True)
class Reading:
    """The open work at one moment, by the monotonic clock.

    ``chunks``: those that are leased, and those that were at an open fault. ``waiting``: how many may be claimed.
    """

    at: float
    chunks: dict[Key, ChunkReading]
    waiting: int

    @property
    def leased(self) -> dict[Key, int]:
        """Attempts of the chunks that are leased."""
        return {key: chunk.attempt for key, chunk in self.chunks.items() if chunk.state == "running"}


@dataclass
class Recovery:
    """One fault and how the work went on after it."""

    kind: str
    target: str
    struck_at: float
    #: Chunks that were leased, with their attempts.
    hanging: dict[Key, int] = field(default_factory=dict)
    #: When the fault was over; None before.
    over_at: float | None = None
    recovered_at: float | None = None
    _claimed: bool = False
    _written: bool = False

    @property
    def seconds(self) -> float | None:
        """From the fault's end until the work went on; None if it has not."""
        if self.over_at is None or self.recovered_at is None:
            return None
        return max(0.0, self.recovered_at - self.over_at)

    def look(self, before: Reading, now: Reading) -> None:
        """Compare two readings that follow each other."""
        if self.over_at is None or self.recovered_at is not None or before.at < self.over_at:
            return
        both = [(before.chunks[key], now.chunks[key], key) for key in before.chunks.keys() & now.chunks.keys()]
        self._written |= any(new.rows > old.rows for old, new, _ in both)
        self._claimed |= not now.waiting or bool(now.leased.items() - before.leased.items())
        renewed = {key for old, new, key in both if old.leased_until != new.leased_until}
        self.hanging = {
            key: attempt
            for key, attempt in self.hanging.items()
            if now.leased.get(key) == attempt and key not in renewed
        }
        all_done = not now.waiting and not now.leased
        if not self.hanging and ((self._claimed and self._written) or all_done):
            self.recovered_at = now.at


def alone(recovery: Recovery, others: list[Recovery]) -> bool:
    """Whether no other fault was there between the beginning of this one and its recovery."""
    until = recovery.recovered_at
    return until is not None and not any(
        other is not recovery
        and other.struck_at < until
        and (other.recovered_at is None or other.recovered_at > recovery.struck_at)
        for other in others
    )
