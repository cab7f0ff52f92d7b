"""A broker that forgets, repeats itself or is away: it is a courier, and Postgres is the truth."""

import shutil
from random import Random
from typing import Any

import pytest
from courier import Courier
from fleet import Fleet, eventually, pass_time
from ledger import Enqueue, assert_nothing_lost

from ops.services import Valkey

#: Rows a second of a worker that is to be met in mid-chunk.
SPEED = 40
SLOTS = 2
DOCUMENTS = 120
CHUNK = 10
#: Seconds for the largest backlog to be cancelled: many times what it takes on an idle machine.
END_S = 600
#: Rows after which chunks are still waiting for sure.
LATEST = DOCUMENTS - 5 * CHUNK


def test_connections_are_cut_while_a_slot_is_idle(
    chance: Random, own_valkey: Valkey, fleet: Fleet, enqueue: Enqueue, courier: Courier
) -> None:
    fleet.worker(slots=SLOTS + 1, stub_rows_per_s=SPEED / 2)
    fleet.reconciler()
    job = enqueue(80, 80 // SLOTS)
    eventually(lambda: job.held() == SLOTS, "every chunk is in work, one slot has nothing to do")
    for rows in sorted(chance.sample(range(1, 60), 4)):
        job.wait_for_rows(rows)
        eventually(courier.cut, "a connection is cut on which the idle slot waits")
    job.wait_for_end()
    # What was delivered again while it was worked on has cost nothing.
    assert job.attempts() == 1
    assert_nothing_lost(job, courier, held=SLOTS)  # a cut can meet an acknowledgement


@pytest.mark.parametrize("data", ["kept", "lost"])
def test_the_broker_is_killed_and_comes_back(
    data: str, chance: Random, own_valkey: Valkey, fleet: Fleet, enqueue: Enqueue, courier: Courier
) -> None:
    worker = fleet.worker(slots=SLOTS, stub_rows_per_s=SPEED)
    fleet.reconciler()
    job = enqueue(DOCUMENTS, CHUNK)
    job.wait_for_rows(chance.randint(1, LATEST))
    own_valkey.kill()
    pass_time(chance.uniform(0, 1))
    if data == "lost":
        shutil.rmtree(own_valkey.data_dir / "data")
    own_valkey.start()
    job.wait_for_end()
    assert worker.endings == []
    # Chunks that end while the broker is away can't be acknowledged.
    assert_nothing_lost(job, courier, held=SLOTS)


def test_the_broker_is_emptied(
    chance: Random, own_valkey: Valkey, fleet: Fleet, enqueue: Enqueue, courier: Courier
) -> None:
    worker = fleet.worker(slots=SLOTS, stub_rows_per_s=SPEED)
    reconciler = fleet.reconciler()
    job = enqueue(DOCUMENTS, CHUNK)
    job.wait_for_rows(chance.randint(1, LATEST))
    courier.forget_all()
    job.wait_for_end()
    assert worker.endings == []
    assert "waited without a message" in reconciler.log
    assert_nothing_lost(job, courier)


def test_messages_are_delivered_twice(chance: Random, fleet: Fleet, enqueue: Enqueue, courier: Courier) -> None:
    for _ in range(2):
        fleet.worker(slots=SLOTS, stub_rows_per_s=SPEED / 2)
    fleet.reconciler()
    job = enqueue(DOCUMENTS, CHUNK)
    assert courier.double() > 0
    job.wait_for_rows(chance.randint(1, LATEST))
    assert courier.double() > 0
    job.wait_for_end()
    assert job.attempts() == 1
    assert_nothing_lost(job, courier)


def test_messages_are_lost_on_their_way(chance: Random, fleet: Fleet, enqueue: Enqueue, courier: Courier) -> None:
    fleet.worker(slots=SLOTS, stub_rows_per_s=SPEED)
    reconciler = fleet.reconciler()
    job = enqueue(DOCUMENTS, CHUNK)
    lost = courier.lose(chance.randint(1, 4))
    job.wait_for_rows(chance.randint(1, LATEST))
    lost += courier.lose(chance.randint(1, DOCUMENTS // CHUNK))
    assert lost > 1
    job.wait_for_end()
    assert "waited without a message" in reconciler.log
    assert_nothing_lost(job, courier)


def test_the_visibility_timeout_is_far_too_short(
    chance: Random, fleet: Fleet, enqueue: Enqueue, courier: Courier
) -> None:
    brief: dict[str, Any] = {"broker_visibility_timeout_s": 1, "stub_rows_per_s": SPEED / 2}
    worker = fleet.worker(slots=SLOTS + 1, **brief)
    fleet.reconciler()
    job = enqueue(chance.randint(80, 110), 60)
    job.wait_for_end()
    # Delivered again and again while each chunk took seconds, and found to be in work.
    assert "works on it" in worker.log
    assert job.attempts() == 1
    assert_nothing_lost(job, courier)


@pytest.mark.timeout(1500)
def test_a_slow_consumer_behind_a_large_backlog(
    chance: Random, fleet: Fleet, enqueue: Enqueue, courier: Courier, run_cli: Any, backlog: int
) -> None:
    worker = fleet.worker(slots=SLOTS, stub_rows_per_s=SPEED)
    reconciler = fleet.reconciler()
    job = enqueue(backlog, 1)
    start = job.rows()

    def look_at_queue(rows: int) -> None:
        job.wait_for_rows(start + rows)
        done = job.rows()
        # However often the reconciler has counted: hardly more messages than chunks that wait.
        assert 0 < courier.queued() <= backlog - done + 2 * SLOTS

    for rows in sorted(chance.sample(range(1, 80), 8)):
        look_at_queue(rows)
    worker.kill()
    look_at_queue(120)
    done = run_cli("cancel", str(job.id), timeout_s=END_S)
    assert done.returncode == 0, done.stderr
    job.wait_for_end("cancelled", within_s=END_S)
    labelled = job.rows("ok")
    assert start + 120 <= labelled < backlog
    assert "unattended" not in reconciler.log
    # Thousands of messages that nobody needs any more stay in the queue, for workers to find nothing behind.
    assert_nothing_lost(job, None, state="cancelled", cancelled=backlog - labelled)
