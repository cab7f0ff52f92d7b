"""Workers on several hosts: a network that breaks and heals, clocks that are minutes apart."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random

import pytest
from courier import Courier
from fleet import BRIEF, Fleet, Member, eventually, pass_time
from hosts import GATEWAYS, NETWORK, Host, clock_shifter
from ledger import Enqueue, Job, assert_nothing_lost
from redis import Redis

from ops.service import HOST
from ops.services import Postgres, Valkey

#: Rows a second of a worker that is to be met in mid-chunk.
SPEED = 20
SKEW_S = 7 * 60


@pytest.fixture
def hosts(own_postgres: Postgres, own_valkey: Valkey) -> Iterator[list[Host]]:
    """Two hosts, and services that answer them, with their passwords as ever."""
    with ExitStack() as links:
        hosts = []
        for gateway in GATEWAYS:
            hosts.append(Host(gateway))
            links.callback(hosts[-1].close)
        with Redis.from_url(own_valkey.url) as client:
            client.config_set("bind", " ".join([HOST, *GATEWAYS]))
        with (own_postgres.cluster / "pg_hba.conf").open("a") as rules:
            rules.write(f"host all all {NETWORK} scram-sha-256\n")
        # Now that the addresses are there that it is told to listen on.
        own_postgres.stop()
        own_postgres.start()
        yield hosts


def worker_on(host: Host, fleet: Fleet, name: str) -> Member:
    """A worker that finds the services over the host's link."""
    addresses = {
        variable: os.environ[variable].replace(HOST, host.gateway)
        for variable in ("GLEANER_DATABASE_URL", "GLEANER_BROKER_URL")
    }
    return fleet.worker(name, slots=1, prefix=host.prefix, environment=addresses, stub_rows_per_s=SPEED)


def holds(job: Job, worker: Member) -> bool:
    """Whether the worker holds a chunk now."""
    return any(str(chunk["lease_owner"]).startswith(f"{worker.name}@") for chunk in job.chunks())


def test_a_host_is_cut_off_past_its_leases(
    chance: Random, hosts: list[Host], fleet: Fleet, enqueue: Enqueue, courier: Courier
) -> None:
    workers = [worker_on(host, fleet, f"host{n}") for n, host in enumerate(hosts)]
    reconciler = fleet.reconciler()
    job = enqueue(120, 30)
    eventually(lambda: all(holds(job, worker) for worker in workers), "both hosts work")
    job.wait_for_rows(chance.randint(2, 40))
    away, other = chance.sample([0, 1], 2)
    hosts[away].cut()
    eventually(lambda: f"the lease of {workers[away].name}@" in reconciler.log, "its chunk is taken over")
    pass_time(chance.uniform(0, 1))
    hosts[away].heal()
    job.wait_for_end()
    eventually(lambda: "its lease is lost" in workers[away].log, "it hears of it")
    assert [worker.endings for worker in workers] == [[], []]
    assert sum(label["worker"].startswith(workers[other].name) for label in job.labels()) > job.documents / 2
    assert_nothing_lost(job, courier, held=2)


def test_clocks_are_minutes_apart(
    chance: Random, fleet: Fleet, enqueue: Enqueue, courier: Courier, tmp_path: Path
) -> None:
    library = str(clock_shifter(tmp_path))
    clocks = {
        name: {"LD_PRELOAD": library, "CLOCK_SHIFT_S": str(shift)}
        for name, shift in (("ahead", SKEW_S), ("behind", -SKEW_S))
    }
    for name, sign in (("ahead", 1), ("behind", -1)):
        shifted = subprocess.run(
            [sys.executable, "-c", "import time; print(time.time())"],
            env={**os.environ, **clocks[name]}, capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert abs(float(shifted.stdout) - sign * SKEW_S - time.time()) < 60
    # A visibility timeout below the skew: the one that is ahead takes the other's messages for overdue.
    brief = {"stub_rows_per_s": SPEED, "broker_visibility_timeout_s": 60}
    workers = [fleet.worker(name, environment=clock, **brief) for name, clock in clocks.items()]
    reconciler = fleet.reconciler()
    job = enqueue(160, 20)
    eventually(lambda: all(holds(job, worker) for worker in workers), "both work")
    job.wait_for_rows(chance.randint(2, 80))
    # Leases are the server's: nobody's is taken over early, and that of the dead not late.
    assert job.attempts() == 1
    dead, alive = chance.sample(workers, 2)
    dead.lose()
    lost_at = time.monotonic()
    eventually(lambda: f"the lease of {dead.name}@" in reconciler.log, "its chunks are taken over")
    assert time.monotonic() - lost_at < 3 * float(BRIEF["LEASE_S"])
    job.wait_for_end()
    assert alive.endings == []
    assert_nothing_lost(job, courier, held=2)
