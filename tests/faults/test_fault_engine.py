"""Engines that die or fall silent, and documents that are the cause of it."""

from random import Random

import pytest
from courier import Courier
from fleet import Fleet
from ledger import Enqueue, assert_nothing_lost

#: Rows a second of a worker that is to be met in mid-chunk.
SPEED = 60
SLOTS = 2
DOCUMENTS = 80
CHUNK = 20
#: Text at which the stub engine dies.
POISON = "here be dragons"


def test_an_engine_dies_in_mid_chunk(chance: Random, fleet: Fleet, enqueue: Enqueue, courier: Courier) -> None:
    # Each life again, a canary's row included: one or two deaths before the job is done.
    rows = chance.randint(DOCUMENTS // 3 + 2, DOCUMENTS - 5)
    worker = fleet.worker(slots=SLOTS, stub_rows_per_s=SPEED, stub_dies_after_rows=rows)
    fleet.reconciler()
    job = enqueue(DOCUMENTS, CHUNK)
    job.wait_for_end()
    assert worker.endings
    assert set(worker.endings) == {70}
    assert_nothing_lost(job, courier)


def test_an_engine_falls_silent(chance: Random, fleet: Fleet, enqueue: Enqueue, courier: Courier) -> None:
    rows = chance.randint(DOCUMENTS // 2, DOCUMENTS - 5)
    worker = fleet.worker(slots=SLOTS, stub_rows_per_s=SPEED, stub_hangs_after_rows=rows, stall_s=2)
    fleet.reconciler()
    job = enqueue(DOCUMENTS, CHUNK)
    job.wait_for_end()
    assert worker.endings
    assert 0 not in worker.endings
    assert_nothing_lost(job, courier, held=SLOTS)


@pytest.mark.parametrize("kills", ["engine", "process"])
def test_a_document_that_kills(kills: str, chance: Random, fleet: Fleet, enqueue: Enqueue, courier: Courier) -> None:
    poisoned = chance.randrange(16)
    # One failure and not three until a chunk is tried alone: each costs a start of the worker.
    brief = {"stub_poison": POISON, "stub_poison_kills": kills, "chunk_max_failures": 1}
    worker = fleet.worker(slots=SLOTS, stub_rows_per_s=SPEED, **brief)
    reconciler = fleet.reconciler(chunk_max_failures=1)
    job = enqueue(16, 4, {poisoned: f"package {poisoned}: {POISON}"})
    job.wait_for_end()
    [label] = [label for label in job.labels() if label["outcome"] != "ok"]
    assert (label["ordinal"], label["outcome"], label["reason_code"]) == (poisoned, "failed", "poison")
    assert set(worker.endings) == {70 if kills == "engine" else -9}
    assert f"poison: document {poisoned}" in reconciler.log
    assert_nothing_lost(job, courier, held=0 if kills == "engine" else SLOTS * len(worker.endings), failed=1)
