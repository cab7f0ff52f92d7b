"""What people ask for in mid-run holds, whenever they ask and whoever dies meanwhile."""

import signal
from collections.abc import Callable
from random import Random
from typing import Any

from courier import Courier
from fleet import BRIEF, Fleet, eventually, pass_time
from ledger import Enqueue, Job, assert_nothing_lost

#: Rows a second: slow, so that a command has seconds to come in mid-run.
SPEED = 20
SLOTS = 2
DOCUMENTS = 140
CHUNK = 20
#: Rows after which a command still comes in mid-run.
LATEST = 40

RunCli = Callable[..., Any]


def assert_cancelled(job: Job, courier: Courier | None, held: int = 0) -> None:
    """Finished rows are kept, every other document has the row ``cancelled``."""
    labelled = job.rows("ok")
    assert labelled < job.documents
    assert_nothing_lost(job, courier, held=held, state="cancelled", cancelled=job.documents - labelled)


def cancel(run_cli: RunCli, job: Job) -> None:
    done = run_cli("cancel", str(job.id))
    assert done.returncode == 0, done.stderr


def test_cancel_twice_at_a_random_moment(
    chance: Random, fleet: Fleet, enqueue: Enqueue, courier: Courier, run_cli: RunCli
) -> None:
    worker = fleet.worker(slots=SLOTS, stub_rows_per_s=SPEED)
    fleet.reconciler()
    job = enqueue(DOCUMENTS, CHUNK)
    job.wait_for_rows(chance.randint(0, LATEST))
    before = job.rows()
    cancel(run_cli, job)
    cancel(run_cli, job)
    job.wait_for_end("cancelled", within_s=15)
    assert job.rows("ok") >= before
    assert worker.endings == []
    assert_cancelled(job, courier)


def test_cancel_while_the_workers_are_down(
    chance: Random, fleet: Fleet, enqueue: Enqueue, courier: Courier, run_cli: RunCli
) -> None:
    worker = fleet.worker(slots=SLOTS, stub_rows_per_s=SPEED)
    fleet.reconciler()
    job = enqueue(DOCUMENTS, CHUNK)
    job.wait_for_rows(chance.randint(1, LATEST))
    worker.lose(chance.choice([signal.SIGKILL, signal.SIGTERM]))
    cancel(run_cli, job)
    # Whatever leases the dead one held run out.
    job.wait_for_end("cancelled")
    assert_cancelled(job, None)
    worker.find()  # its host is back: the messages that are left find nothing to do
    assert_cancelled(job, courier, held=SLOTS)


def test_cancel_whose_command_is_killed(
    chance: Random, fleet: Fleet, enqueue: Enqueue, courier: Courier, start_cli: Callable[..., Any]
) -> None:
    worker = fleet.worker(slots=SLOTS, stub_rows_per_s=SPEED)
    fleet.reconciler()
    job = enqueue(1_000, 1)
    job.wait_for_rows(chance.randint(1, 40))
    canceller = start_cli("cancel", str(job.id))
    eventually(lambda: job.state() == "cancelling", "it has begun", look_s=0)
    pass_time(chance.uniform(0, 0.1))
    canceller.kill()
    job.wait_for_end("cancelled")
    assert canceller.wait() == -signal.SIGKILL
    assert worker.endings == []
    assert_cancelled(job, courier)


def test_pause_and_resume_at_random_moments(
    chance: Random, fleet: Fleet, enqueue: Enqueue, courier: Courier, run_cli: RunCli
) -> None:
    fleet.worker(slots=SLOTS, stub_rows_per_s=SPEED)
    fleet.reconciler()
    job = enqueue(DOCUMENTS, CHUNK // 2)
    job.wait_for_rows(chance.randint(0, LATEST))
    assert run_cli("pause", str(job.id)).returncode == 0
    # What was in work is finished; from then on nothing moves.
    eventually(lambda: job.held() == 0, "chunks in work are finished")
    still = job.chunks()
    pass_time(2 * float(BRIEF["RECONCILE_S"]) + chance.uniform(0, 0.5))
    assert job.chunks() == still
    assert job.state() == "paused"
    assert run_cli("resume", str(job.id)).returncode == 0
    job.wait_for_end()
    assert job.attempts() == 1
    assert_nothing_lost(job, courier)


def test_cancel_while_paused(chance: Random, fleet: Fleet, enqueue: Enqueue, courier: Courier, run_cli: RunCli) -> None:
    fleet.worker(slots=SLOTS, stub_rows_per_s=SPEED)
    fleet.reconciler()
    job = enqueue(DOCUMENTS, CHUNK)
    job.wait_for_rows(chance.randint(0, LATEST))
    assert run_cli("pause", str(job.id)).returncode == 0
    cancel(run_cli, job)
    job.wait_for_end("cancelled", within_s=15)
    assert_cancelled(job, courier)
