"""Where the main thread of vLLM's core process spends its time: py-spy's samples, counted by part of a step."""

import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections import Counter
from pathlib import Path

from schemas.errors import UsageError

#: Samples a second. The process is not halted for them: that made steps twice as long.
RATE = 100
#: Parts of a step by the innermost frame, as py-spy writes it, that says which one it is.
PARTS = (
    ("wait for the GPU", r"(?:^|\.)(synchronize|get_output|wait_event|_to_list|result) \("),
    ("wait for requests", r"(?:^|\.)(_process_input_queue|process_input_sockets) \("),
    ("decoder", r"worker/decoder/"),
    ("mask fill", r"(?:^|\.)(grammar_bitmask|get_grammar_bitmask|_fill_bitmasks|fill_bitmask) \("),
    ("mask copy", r"(?:^|\.)(apply_grammar_bitmask) \("),
    ("accept", r"(?:^|\.)(accept_tokens?|is_terminated|should_advance|validate_tokens) \("),
    (
        "set-up of requests",
        r"(?:^|\.)(add_requests?|_update_states|grammar_init|compile_grammar|_handle_client_request) \(",
    ),
    ("sample", r"/sample/|(?:^|\.)(sample|_sample|sample_tokens) \("),
    (
        "output handling",
        r"(?:^|\.)(update_from_output|_bookkeeping_sync|_update_request_with_output|_process_engine_outputs) \(",
    ),
    ("schedule", r"(?:^|\.)(schedule|update_before_schedule|_update_after_schedule) \("),
    ("forward", r"(?:^|\.)(execute_model) \("),
    ("rest", r""),
)


class Account:
    """Samples by part."""

    def __init__(self) -> None:
        self.samples: Counter[str] = Counter()

    def take(self, stacks: str) -> None:
        """Count stacks as py-spy writes them: frames from the outermost on, a blank, how many."""
        for line in stacks.splitlines():
            stack, _, count = line.rpartition(" ")
            frames = stack.split(";")
            if any("run_busy_loop" in frame for frame in frames):
                self.samples[_part(frames)] += int(count)

    def shares(self) -> dict[str, float]:
        """The share of each part, the largest first."""
        total = sum(self.samples.values())
        return {part: count / total for part, count in self.samples.most_common()}


def _part(frames: list[str]) -> str:
    for frame in reversed(frames):
        for part, pattern in PARTS[:-1]:
            if re.search(pattern, frame):
                return part
    return PARTS[-1][0]


class Profile:
    """``with Profile() as account:`` samples the core process below this one until the block ends."""

    def __enter__(self) -> Account:
        program = shutil.which("py-spy")
        if program is None:
            raise UsageError("py-spy is not installed: pip install py-spy")
        self._account = Account()
        self._file = Path(tempfile.mkdtemp()) / "stacks"
        self._spy = subprocess.Popen(
            [
                *(
                    program,
                    "record",
                    "--pid",
                    str(_core()),
                    "--rate",
                    str(RATE),
                    "--format",
                    "raw",
                    "--idle",
                    "--nonblocking",
                ),
                *("--output", str(self._file), "--duration", "unlimited", "--full-filenames"),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        return self._account

    def __exit__(self, *_: object) -> None:
        self._spy.send_signal(signal.SIGINT)
        self._spy.wait()
        self._account.take(self._file.read_text())
        shutil.rmtree(self._file.parent)


def _core() -> int:
    """The engine's core among this process's descendants."""
    family = {os.getpid()}
    found = []
    processes = sorted(int(path.name) for path in Path("/proc").glob("[0-9]*"))
    for _ in range(3):
        for pid in processes:
            try:
                parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
                name = Path(f"/proc/{pid}/cmdline").read_bytes()
            except OSError:
                continue
            if parent in family:
                family.add(pid)
                if b"EngineCore" in name and pid not in found:
                    found.append(pid)
    if not found:
        raise UsageError("no engine core runs below this process")
    return found[0]
