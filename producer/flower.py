"""One row a job in Flower: events of a task that nobody runs, made from what Postgres says."""

import socket
import time
from typing import Any

from celery import Celery

from schemas.printable import counted

#: Seconds after which a job is announced anew: a Flower that was restarted has forgotten it.
ANNOUNCE_S = 60.0
NAME = "gleaner.job"


class JobRows:
    """Keeps the rows current. One object a reconciler."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        #: Job -> when it was announced, and what was said last.
        self._shown: dict[int, tuple[float, str]] = {}

    def show(self, jobs: list[dict[str, Any]]) -> None:
        """Send what has changed.

        :param jobs: as ``jobs_in_work`` gives them.
        :raises kombu.exceptions.OperationalError: (or redis's errors) when the broker can't be reached.
        """
        changed = [job for job in jobs if self._is_news(job)]
        self._shown = {job["id"]: self._shown[job["id"]] for job in jobs if job["id"] in self._shown}
        if not changed:
            return
        with self._app.events.default_dispatcher(hostname=f"reconciler@{socket.gethostname()}") as dispatcher:
            for job in changed:
                self._send(dispatcher, job)

    def _is_news(self, job: dict[str, Any]) -> bool:
        announced_at, words = self._shown.get(job["id"], (float("-inf"), ""))
        return words != _words(job) or time.monotonic() - announced_at >= ANNOUNCE_S

    def _send(self, dispatcher: Any, job: dict[str, Any]) -> None:
        uuid, words = f"job-{job['id']}", _words(job)
        announced_at, _ = self._shown.get(job["id"], (float("-inf"), ""))
        if time.monotonic() - announced_at >= ANNOUNCE_S:
            announced_at = time.monotonic()
            about = f"job {job['id']}: {job['label_spec']}_v{job['version']} over {job['corpus']}, {job['model']}"
            dispatcher.send("task-received", uuid=uuid, name=NAME, args="", kwargs=about, retries=0, eta=None)
            dispatcher.send("task-started", uuid=uuid)
        if job["state"] == "done":
            dispatcher.send("task-succeeded", uuid=uuid, result=words, runtime=job["running_s"] or 0.0)
        elif job["state"] == "cancelled":
            dispatcher.send("task-revoked", uuid=uuid, terminated=False, signum=None, expired=False)
        else:
            dispatcher.send("task-progress", uuid=uuid, result=words)
        self._shown[job["id"]] = (announced_at, words)


def _words(job: dict[str, Any]) -> str:
    finished = max(0, job["total"] - job["open_documents"])
    return f"{job['state']}: {finished:,}/{job['total']:,} documents, {counted(job['held'], 'chunk')} in work"
