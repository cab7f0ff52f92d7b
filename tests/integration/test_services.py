"""The embedded services start, stop, survive kill -9, keep data and let nobody in without a password."""

import os
import signal
import stat
import subprocess
from pathlib import Path

import psycopg
import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from ops.processes import ProcessError, SupervisedProcess
from ops.service import ServiceError, free_port
from ops.services import Postgres, Valkey

#: Long enough that only a stop ends it.
SLEEP = "600"


def pids_of_session(pid: int) -> list[int]:
    listed = subprocess.run(["ps", "-o", "pid=", "-s", str(pid)], capture_output=True, text=True, check=False)
    return [int(line) for line in listed.stdout.split()]


def children_of(pid: int) -> list[int]:
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
    return [int(line) for line in listed.stdout.split()]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def supervised(folder: Path, name: str = "sleeper") -> SupervisedProcess:
    return SupervisedProcess(name, pid_file=folder / f"{name}.pid", log_file=folder / f"{name}.log")


def test_postgres_keeps_data_and_guards_it(tmp_path: Path) -> None:
    postgres = Postgres(tmp_path / "postgres", settings={"max_connections": 20})
    try:
        with postgres:
            port = postgres.port
            with psycopg.connect(postgres.url) as connection:
                connection.execute("CREATE TABLE kept (value text)")
                connection.execute("INSERT INTO kept VALUES ('before')")
                row = connection.execute(
                    "SELECT rolsuper OR rolcreaterole OR rolcreatedb FROM pg_roles WHERE rolname = user"
                ).fetchone()
                assert row == (False,)
                assert connection.execute("SHOW max_connections").fetchone() == ("20",)
                assert connection.execute("SHOW listen_addresses").fetchone() == ("127.0.0.1",)
            with pytest.raises(psycopg.OperationalError):
                psycopg.connect(f"postgresql://gleaner:wrong@127.0.0.1:{port}/gleaner")
            with psycopg.connect(postgres.analyst_url) as connection:
                member = "SELECT pg_has_role('gleaner_analyst', 'member')"
                assert connection.execute(member).fetchone() == (True,)
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    connection.execute("SELECT * FROM kept")
            with psycopg.connect(postgres.superuser_url) as connection:
                assert connection.execute("SHOW is_superuser").fetchone() == ("on",)
            pid = postgres.process.pid
            assert pid is not None
            family = [pid, *children_of(pid)]
            assert len(family) > 1
        assert not postgres.running()
        assert not [left for left in family if alive(left)]

        again = Postgres(tmp_path / "postgres")  # another process would build its own object
        with again:
            assert again.url == postgres.url
            shown = subprocess.run(
                [again.psql, again.url, "-Atc", "SELECT value FROM kept"],
                capture_output=True,
                text=True,
                check=True,
            )
            assert shown.stdout == "before\n"
    finally:
        postgres.remove()


def test_postgres_starts_after_kill_9(tmp_path: Path) -> None:
    postgres = Postgres(tmp_path / "postgres")
    try:
        postgres.start()
        with psycopg.connect(postgres.url) as connection:
            connection.execute("CREATE TABLE kept (value text)")
            connection.execute("INSERT INTO kept VALUES ('committed')")
        pid = postgres.process.pid
        assert pid is not None
        family = [pid, *children_of(pid)]
        postgres.kill()
        assert not [left for left in family if alive(left)]
        assert (postgres.cluster / "postmaster.pid").exists()
        # The lock file's pid now belongs to a process that is no server.
        (postgres.cluster / "postmaster.pid").write_text(f"{os.getpid()}\n")
        port = postgres.port
        postgres.start()
        assert postgres.port == port
        with psycopg.connect(postgres.url) as connection:
            assert connection.execute("SELECT value FROM kept").fetchone() == ("committed",)
    finally:
        postgres.remove()
    assert not (tmp_path / "postgres").exists()


def test_valkey_keeps_data_over_stop_and_kill_9(tmp_path: Path) -> None:
    valkey = Valkey(tmp_path / "valkey", password='quo"te\\d')
    with valkey:
        with redis.Redis.from_url(valkey.url) as client:
            client.set("kept", "stopped")
            assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
        once = Retry(NoBackoff(), retries=0)
        with redis.Redis(port=valkey.port, retry=once) as stranger, pytest.raises(redis.AuthenticationError):
            stranger.ping()
        assert valkey.process.pid is not None
        command = Path(f"/proc/{valkey.process.pid}/cmdline").read_bytes()
        assert b"quo" not in command
        pid = valkey.process.pid
    assert not alive(pid)
    for secret in ("service.json", "valkey.conf"):
        assert stat.S_IMODE((valkey.data_dir / secret).stat().st_mode) == 0o600

    again = Valkey(tmp_path / "valkey")
    again.start()
    with redis.Redis.from_url(again.url, decode_responses=True) as client:
        assert client.get("kept") == "stopped"
        client.set("kept", "killed")
    again.kill()
    port = again.port
    with again, redis.Redis.from_url(again.url, decode_responses=True) as client:
        assert again.port == port
        assert client.get("kept") == "killed"


def test_a_given_port_that_is_taken_is_said(tmp_path: Path) -> None:
    port = free_port()
    with (
        Valkey(tmp_path / "first", port=port),
        pytest.raises(ServiceError, match=f"port {port} is taken"),
    ):
        Valkey(tmp_path / "second", port=port).start()


def test_stop_leaves_nothing_of_the_family(tmp_path: Path) -> None:
    process = supervised(tmp_path)
    # A shell that ignores the signal, with a child, and a grandchild that leads a session of its own.
    script = f"trap '' TERM; sleep {SLEEP} & setsid sleep {SLEEP} & echo ready; wait; wait"
    process.start(["/bin/sh", "-c", script])
    pid = process.pid
    assert pid is not None
    while "ready" not in process.log_tail():
        assert not process.wait(0.01)
    family = [pid, *children_of(pid)]
    assert len(family) == 3
    process.stop(timeout_s=0.2)
    assert not [left for left in family if alive(left)]
    assert not process.pid_file.exists()


def test_another_object_stops_what_a_dead_leader_left(tmp_path: Path) -> None:
    process = supervised(tmp_path)
    process.start(["/bin/sh", "-c", f"sleep {SLEEP} & echo ready"])
    identity = process.pid_file.read_text()
    assert process.wait(5)
    assert process.exit_code == 0
    assert '"pid"' in identity
    session = int(identity.split('"pid": ')[1].split(",")[0])
    assert len([left for left in pids_of_session(session) if alive(left)]) == 1
    supervised(tmp_path).stop()
    assert not [left for left in pids_of_session(session) if alive(left)]


def test_a_recycled_pid_is_never_signalled(tmp_path: Path) -> None:
    bystander = subprocess.Popen(["sleep", SLEEP], start_new_session=True)
    try:
        process = supervised(tmp_path)
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        process.pid_file.write_text(f'{{"pid": {bystander.pid}, "start_time": 1, "boot_id": "{boot}"}}')
        assert not process.running()
        process.stop()
        process.kill()
        assert bystander.poll() is None
    finally:
        bystander.send_signal(signal.SIGKILL)
        bystander.wait()


def test_a_program_that_is_missing_is_said(tmp_path: Path) -> None:
    with pytest.raises(ProcessError, match="can't be started"):
        supervised(tmp_path).start([tmp_path / "nothing"])
