"""What a process tree and the GPU use while something runs: processor time, memory, GPU utilisation."""

import contextlib
import os
import shutil
import subprocess
import threading
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean

#: Seconds between two samples.
INTERVAL_S = 0.5
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def _stat(pid: int) -> tuple[int, float, int] | None:
    """Parent, processor seconds and resident bytes of a process; None when it is gone."""
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[1]), (int(fields[11]) + int(fields[12])) / _TICKS, int(fields[21]) * _PAGE
    return None


def _tree(root: int) -> dict[int, tuple[float, int]]:
    """Processor seconds and resident bytes of a process and its descendants."""
    stats = {int(p.name): s for p in Path("/proc").glob("[0-9]*") if (s := _stat(int(p.name))) is not None}
    found = {root} & stats.keys()
    grown = True
    while grown:
        more = {pid for pid, (parent, _, _) in stats.items() if parent in found} - found
        found |= more
        grown = bool(more)
    return {pid: (stats[pid][1], stats[pid][2]) for pid in found}


@dataclass
class Usage:
    """Filled while the sampler runs."""

    front_end_cpu_s: float = 0.0  #: processor seconds of the root process alone
    tree_cpu_s: float = 0.0  #: of the root and all its descendants
    peak_rss_gib: float = 0.0  #: of the whole tree
    gpu_utilization: list[float] = field(default_factory=list)  #: percent, one a second

    def as_json(self) -> dict[str, float | None]:
        return {
            "front_end_cpu_s": round(self.front_end_cpu_s, 2),
            "tree_cpu_s": round(self.tree_cpu_s, 2),
            "peak_rss_gib": round(self.peak_rss_gib, 2),
            "gpu_utilization_pct": round(mean(self.gpu_utilization), 1) if self.gpu_utilization else None,
        }


class Sampler:
    """``with Sampler(pid) as usage:`` samples until the block ends."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._usage = Usage()
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._watch_tree, daemon=True)]
        self._smi: subprocess.Popen[str] | None = None

    def __enter__(self) -> Usage:
        if shutil.which("nvidia-smi"):
            self._smi = subprocess.Popen(
                ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "-l", "1"],  # noqa: S607
                stdout=subprocess.PIPE,
                text=True,
            )
            self._threads.append(threading.Thread(target=self._watch_gpu, daemon=True))
        for thread in self._threads:
            thread.start()
        return self._usage

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._smi is not None:
            self._smi.terminate()
            self._smi.wait()
        for thread in self._threads:
            thread.join()

    def _watch_tree(self) -> None:
        first = _tree(self._pid)
        while True:
            ended = self._stop.wait(INTERVAL_S)
            now = _tree(self._pid)
            used = {pid: cpu - first.get(pid, (0.0, 0))[0] for pid, (cpu, _) in now.items()}
            self._usage.front_end_cpu_s = used.get(self._pid, self._usage.front_end_cpu_s)
            self._usage.tree_cpu_s = max(self._usage.tree_cpu_s, sum(used.values()))
            self._usage.peak_rss_gib = max(self._usage.peak_rss_gib, sum(rss for _, rss in now.values()) / 2**30)
            if ended:
                return

    def _watch_gpu(self) -> None:
        assert self._smi is not None
        assert self._smi.stdout is not None
        for line in self._smi.stdout:
            with contextlib.suppress(ValueError):
                self._usage.gpu_utilization.append(float(line))
