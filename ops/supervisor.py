"""``python -m ops.supervisor COMMAND...``: runs a command, and starts it again when it dies.

For the local stack's worker and reconciler, which systemd, compose or Kubernetes start again elsewhere. What it does is
said on stderr, between the lines of the command. Told to stop, it tells the command, waits, and ends as that ended.
"""

import logging
import signal
import subprocess
import sys
import time
from types import FrameType

from ops.processes import end_session

logger = logging.getLogger("supervisor")

#: Seconds after which a process has stayed up: longer than an engine takes to load, so that one that dies each time it
#: has loaded counts as one that never came up.
STEADY_S = 300.0
#: Ends one after the other, none of which had stayed up, after which it is given up. To find a document that kills the
#: worker takes about a dozen (ops/RELIABILITY.md).
MAX_QUICK_ENDS = 15
#: Pause before another start in seconds, doubled with each end that was quick.
FIRST_PAUSE_S = 1.0
MAX_PAUSE_S = 10.0
#: Seconds between looks at whether a pause is to end.
LOOK_S = 0.1

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
#: Something that it needs is not there. At the first start a person has to mend that; later it may come back.
_UNAVAILABLE = 1
#: It was told to end, or called wrongly.
_FINAL = (0, 2, *(128 + signum for signum in _SIGNALS))
#: The worker asks to be started again, as often as it takes: ``worker start --help``.
_ASKS_FOR_ANOTHER = (70, 75)


class Supervisor:
    """Runs a command until it ends for good."""

    def __init__(self, command: list[str]) -> None:
        self._command = command
        self._child: subprocess.Popen[bytes] | None = None
        self._told: int | None = None
        #: Ends so far, and how many of the last ones were quick.
        self._ends = 0
        self._quick_ends = 0

    def run(self) -> int:
        """Run it, again and again. To be called once, in the main thread.

        :returns: the last exit code; of a process that a signal ended, 128 and its number.
        """
        for signum in _SIGNALS:
            signal.signal(signum, self._tell)
        while True:
            started = time.monotonic()
            code = self._run_once()
            if self._told is not None:
                return code
            self._ends += 1
            self._quick_ends = 0 if time.monotonic() - started >= STEADY_S else self._quick_ends + 1
            if self._ended_for_good(code):
                return code
            # What an engine's process holds, the next one needs.
            end_session()
            pause_s = min(FIRST_PAUSE_S * 2.0 ** max(0, self._quick_ends - 1), MAX_PAUSE_S)
            logger.warning("ended (exit code %d): starting it again in %g s", code, pause_s)
            if not self._pause(pause_s):
                return 0

    def _run_once(self) -> int:
        self._child = subprocess.Popen(self._command)
        if self._told is not None:  # while it was started
            self._child.send_signal(self._told)
        code = self._child.wait()
        return code if code >= 0 else 128 - code

    def _ended_for_good(self, code: int) -> bool:
        if code in _FINAL or (code == _UNAVAILABLE and self._ends == 1):
            logger.warning("ended (exit code %d): not started again", code)
            return True
        if self._quick_ends >= MAX_QUICK_ENDS and code not in _ASKS_FOR_ANOTHER:
            logger.critical(
                "ended (exit code %d), for the %dth time within %g s of its start: given up. Why is said above.",
                code, self._quick_ends, STEADY_S,
            )  # fmt: skip
            return True
        return False

    def _pause(self, seconds: float) -> bool:
        """Whether it went by without a signal to stop."""
        until = time.monotonic() + seconds
        while self._told is None and time.monotonic() < until:
            time.sleep(LOOK_S)
        return self._told is None

    def _tell(self, signum: int, _frame: FrameType | None) -> None:
        self._told = signum
        if self._child is not None:
            self._child.send_signal(signum)


def main() -> None:
    """Run the command that the arguments are."""
    logging.basicConfig(format="[%(asctime)s: %(levelname)s/%(name)s] %(message)s", level=logging.INFO)
    sys.exit(Supervisor(sys.argv[1:]).run())


if __name__ == "__main__":
    main()
