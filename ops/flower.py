"""The local stack's Flower: a process that shows the work of all nodes in a browser, behind a password."""

import base64
import http.client
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from ops.processes import SupervisedProcess
from ops.service import HOST

#: Flower's usual port, which its documentation names; another is drawn where it is taken.
PORT = 5555
USER = "gleaner"
#: Seconds until it must answer: it imports for two, more while an engine loads beside it.
TIMEOUT_S = 60.0
#: Seconds between two looks at its port.
POLL_S = 0.2
#: Seconds that it may take for an answer. Whoever else listens on its port counts as silent.
ANSWER_S = 2.0
#: Seconds for its end: it has nothing to save, and waits for threads that wait for workers.
STOP_S = 1.0
#: Chunks that it remembers: 20,000 take about 100 MB.
MAX_TASKS = 20_000
#: Seconds after which a worker that is gone leaves its list: a restart is over by then.
PURGE_S = 600
#: Milliseconds that it waits for a worker's description; its second is short for one that loads an engine.
INSPECT_TIMEOUT_MS = 10_000


class Flower(SupervisedProcess):
    """Flower, on the port and with the password that the stack's settings name."""

    def __init__(self, *, pid_file: Path, log_file: Path) -> None:
        super().__init__("flower", pid_file=pid_file, log_file=log_file, stop_timeout_s=STOP_S)

    def launch(self, environment: Mapping[str, str]) -> None:
        """Start it.

        :param environment: of this stack's processes, the settings among it.
        """
        own = {
            "FLOWER_ADDRESS": HOST,
            "FLOWER_PORT": environment["GLEANER_FLOWER_PORT"],
            "FLOWER_BASIC_AUTH": _login(environment),
            "FLOWER_MAX_TASKS": str(MAX_TASKS),
            "FLOWER_PURGE_OFFLINE_WORKERS": str(PURGE_S),
            "FLOWER_INSPECT_TIMEOUT": str(INSPECT_TIMEOUT_MS),
        }
        # FLOWER_* options of the user's own would be taken by ours: FLOWER_UNAUTHENTICATED_API opens it.
        others = {key: value for key, value in environment.items() if not key.startswith("FLOWER_")}
        self.start([sys.executable, "-m", "celery", "-A", "schemas.queue:app", "flower"], env=others | own)

    def came_up(self, settings: Mapping[str, str]) -> bool:
        """Wait until it answers; False when it ended, or is silent for too long."""
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            if _answers(settings):
                return True
            if self.wait(POLL_S):
                return False
        return False


def _answers(settings: Mapping[str, str]) -> bool:
    """Whether a Flower that takes our password listens: another stack's has another."""
    connection = http.client.HTTPConnection(HOST, int(settings["GLEANER_FLOWER_PORT"]), timeout=ANSWER_S)
    login = base64.b64encode(_login(settings).encode()).decode()
    try:
        connection.request("GET", "/", headers={"Authorization": f"Basic {login}"})
        return connection.getresponse().status < http.HTTPStatus.BAD_REQUEST
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _login(settings: Mapping[str, str]) -> str:
    return f"{settings['GLEANER_FLOWER_USER']}:{settings['GLEANER_FLOWER_PASSWORD']}"
