"""What a soak came to: figures, as a table for people and as JSON."""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from ops.soak.account import Account
from ops.soak.host import BRIEF
from ops.soak.recovery import Recovery, alone
from producer.reconciler import Decision
from schemas.settings import Settings

#: What a worker says of a message that found nothing to claim, of a chunk that it must not write for any more, and of
#: one that is quarantined.
_NOTHING, _SHUT_OUT, _ALONE = "is not to be claimed", "its lease is lost", "it gets the engine for itself"


@dataclass(frozen=True)
class LogFigures:
    """What the logs of the processes say."""

    nothing_to_claim: int
    shut_out: int
    alone: int
    #: The reconciler's decisions: how many, and how many chunks they were about.
    decisions: dict[str, int]
    published: int


def read_logs(workers: list[Path], reconciler: Path) -> LogFigures:
    """Count what is of interest in the logs."""
    nothing = shut_out = alone = 0
    for line in _lines(workers):
        nothing += _NOTHING in line
        shut_out += _SHUT_OUT in line
        alone += _ALONE in line
    decisions: Counter[str] = Counter()
    published = 0
    for line in _lines([reconciler]):
        try:
            act = json.loads(line)
            decisions[act["decision"]] += 1
            published += act["count"] if act["decision"] == Decision.PUBLISHED else 0
        except (ValueError, TypeError, KeyError):
            continue  # an error's line, or one that SIGKILL cut short
    return LogFigures(nothing, shut_out, alone, dict(decisions), published)


def _lines(files: list[Path]) -> Iterator[str]:
    for file in files:
        if file.exists():
            with file.open(encoding="utf-8", errors="replace") as log:
                yield from log


@dataclass(frozen=True)
class KindFigures:
    """Times to recover from one kind of fault, in seconds. ``alone``: with no other fault meanwhile."""

    times: int
    median_s: float | None
    worst_s: float | None
    alone: int
    alone_median_s: float | None
    alone_worst_s: float | None
    #: Faults after which the work was not seen to go on.
    open: int


def by_kind(recoveries: list[Recovery]) -> dict[str, KindFigures]:
    """Figures of each kind, in the order of their names."""
    figures = {}
    for kind in sorted({one.kind for one in recoveries}):
        faults = [one for one in recoveries if one.kind == kind]
        seconds = [one.seconds for one in faults if one.seconds is not None]
        single = [one.seconds for one in faults if one.seconds is not None and alone(one, recoveries)]
        figures[kind] = KindFigures(
            times=len(faults),
            median_s=median(seconds) if seconds else None,
            worst_s=max(seconds, default=None),
            alone=len(single),
            alone_median_s=median(single) if single else None,
            alone_worst_s=max(single, default=None),
            open=len(faults) - len(seconds),
        )
    return figures


@dataclass(frozen=True)
class Report:
    """All figures of a soak. ``faults_found`` says what was wrong; it must be empty."""

    seed: int
    workers: int
    rows_per_s: float
    faulty_s: float
    interrupted: bool
    undisturbed_rate: float
    disturbed_rate: float
    settled_s: float | None
    account: Account
    ledgers_read: int
    unbalanced: list[dict[str, Any]]
    logs: LogFigures
    worker_exits: dict[str, int]
    missed: dict[str, int]
    kinds: dict[str, KindFigures]
    faults: list[dict[str, Any]]
    faults_found: list[str] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        """0, 1 when something was wrong, 130 when it was interrupted before anything was."""
        return 1 if self.faults_found else 130 if self.interrupted else 0

    def as_json(self) -> dict[str, Any]:
        """Everything, with the settings that were brief."""
        return {"brief_settings": BRIEF, **asdict(self)}

    def markdown(self) -> str:
        """The tables of ops/RELIABILITY.md."""
        rows = [("what", "figure"), ("---", "---"), *((name, value) for name, value in self._figures())]
        kinds: list[tuple[str, ...]] = [
            ("fault", "times", "recovered in, median", "worst", "alone", "median", "worst"),
            ("---",) * 7,
            *(
                (
                    kind,
                    str(one.times) + (f" ({one.open} without recovery)" if one.open else ""),
                    _seconds(one.median_s),
                    _seconds(one.worst_s),
                    str(one.alone),
                    _seconds(one.alone_median_s),
                    _seconds(one.alone_worst_s),
                )
                for kind, one in self.kinds.items()
            ),
        ]
        return "\n\n".join("\n".join(f"| {' | '.join(row)} |" for row in table) for table in (rows, kinds))

    def _figures(self) -> Iterator[tuple[str, str]]:
        account, logs = self.account, self.logs
        lost = f"{account.lost + account.unfinished:,}" if not self.interrupted else f"{account.lost:,}"
        yield (
            "length of the faulty part",
            f"{self.faulty_s / 60:.1f} min" + (", interrupted" if self.interrupted else ""),
        )
        yield "seed; workers, rows/s of each engine", f"{self.seed}; {self.workers}, {self.rows_per_s:.0f}"
        yield "documents, in chunks", f"{account.documents:,}, in {account.chunks:,}"
        yield "faults injected", f"{sum(kind.times for kind in self.kinds.values()):,}"
        yield "**documents lost**", f"**{lost}**"
        yield "**rows doubled**", f"**{account.doubled + account.stray + account.history_off:,}**"
        yield (
            "**ledgers that did not balance**",
            f"**{len(self.unbalanced)}** of all jobs in {self.ledgers_read} readings",
        )
        yield "messages that found nothing to claim", f"{logs.nothing_to_claim:,}"
        yield "claims of a chunk beyond its first", f"{account.claimed_again:,}"
        yield "late workers shut out by the fencing token", f"{logs.shut_out:,}"
        ran_out = logs.decisions.get(Decision.TAKEN_OVER, 0) + logs.decisions.get(Decision.QUARANTINED, 0)
        yield "leases that ran out, taken over by the reconciler", f"{ran_out:,}"
        yield "messages published anew by the reconciler", f"{logs.published:,}"
        yield "times a quarantined chunk was worked on alone", f"{logs.alone:,}"
        yield "quarantined chunks halved", f"{logs.decisions.get(Decision.HALVED, 0):,}"
        yield (
            "documents with poison, found",
            (
                f"{account.poison_found + account.poison_missed}, {account.poison_found}; "
                f"{account.taken_for_poison} others taken for it"
            ),
        )
        yield "documents/s without faults, with", f"{self.undisturbed_rate:,.0f}, {self.disturbed_rate:,.0f}"
        yield "all ended by itself after the last fault in", _seconds(self.settled_s)

    def brief_settings(self) -> str:
        """The settings that were shorter than in production, in words."""
        defaults = {name: Settings.model_fields[name].default for name in BRIEF}
        return ", ".join(f"{name} {value:g} (default {defaults[name]:g})" for name, value in BRIEF.items())


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} s"
