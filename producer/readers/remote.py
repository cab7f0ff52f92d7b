"""Corpora that lie elsewhere: each file fetched whole through fsspec, or nothing of it."""

import errno
import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_random_exponential

from producer.readers.base import Advance, library
from producer.readers.file import CorpusFile, no_copy, temporary
from producer.readers.sources import WILD, Found, is_aside, without_secrets
from schemas.errors import GleanerError, UsageError
from schemas.extras import install

#: Times that a web server is asked for a file; the clients of stores have tries of their own, of about a minute.
TRIES = 3
#: Seconds between two tries at most.
WAIT_S = 5.0
#: What servers answer that may answer otherwise a moment later: too slow, too early, too often, and their own faults.
_PASSING = (408, 425, 429, *range(500, 600))
_REFUSED = (401, 403)
#: Parts of the names of errors that clients raise when they have no key to show, or one that has run out.
_NO_KEY = ("Credential", "RefreshError", "SSO", "TokenRetrieval", "GatedRepo")
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
#: Where no folder can be listed.
_ONE = ". A folder or a glob can't be fetched from a web server: give the address of each file"
_URL = re.compile(r"[a-zA-Z][a-zA-Z0-9+.:-]*://[^\s'\"<>]+")
#: What writes to stderr what errors say too, with addresses as they are, or which connections an interrupt leaves.
_LOUD = ("gcsfs", "huggingface_hub", "aiobotocore", "asyncio")


@dataclass(frozen=True, slots=True)
class _Store:
    """A kind of place. ``package``: its client. ``remedy``: for one whom it does not let in."""

    remedy: str
    package: str = ""
    listed: bool = True
    tries: int = 1


_WEB = _Store(
    "put user and password before the host (https://USER:PASSWORD@host/...) or into ~/.netrc; a signed address may "
    "have run out",
    "fsspec",
    listed=False,
    tries=TRIES,
)
_S3 = _Store(
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE; for a public bucket FSSPEC_S3_ANON=true",
    "s3fs",
)
_GS = _Store(
    "run `gcloud auth application-default login`, or let GOOGLE_APPLICATION_CREDENTIALS name a key file; for a public "
    "bucket FSSPEC_GS_TOKEN=anon",
    "gcsfs",
)
_HF = _Store(
    "set HF_TOKEN to a token that may read it; of a gated one accept the terms on its page first", "huggingface-hub"
)
_STORES = {"http": _WEB, "https": _WEB, "s3": _S3, "s3a": _S3, "gs": _GS, "gcs": _GS, "hf": _HF}
_OTHER = _Store("its package for fsspec says how to sign in")


def fetch(url: str, timeout_s: float, advance: Advance) -> list[Found]:
    """The files at a URL: one, those of a folder or those that a glob matches, by name.

    Of a web server that says neither how long a file is nor when it ends, a connection that drops can't be told from
    the end.

    :param timeout_s: seconds without a byte after which a connection counts as lost.
    :param advance: told of the bytes so far, of all files together.
    :raises UsageError: when there is none, when a package is missing, and for what is no URL.
    :raises GleanerError: when not all of it can be had; nothing is kept then.
    """
    shown = without_secrets(url)
    fsspec = library("fsspec", "fsspec", f"{shown}: a URL")
    for logger in _LOUD:
        logging.getLogger(logger).setLevel(logging.CRITICAL)
    protocol = url.rpartition("::")[2].partition("://")[0]
    store = _STORES.get(protocol, _OTHER)
    try:
        system, path = fsspec.core.url_to_fs(url, **_options(fsspec, protocol, timeout_s))
        files = _files(system, path, store)
        if not files:
            raise UsageError(f"no file matches {shown}: check the address of the corpus")
        found: list[Found] = []
        for one in sorted(files):
            before = sum(each.file.size for each in found)
            uri = shown if one == path else without_secrets(system.unstrip_protocol(one))
            file = _copy(system, one, uri, store, lambda done, before=before: advance(before + done))  # type: ignore[misc]
            found.append(Found(file, _name(one, path, uri)))
        # Clients fetch in parts, and go on in the middle when a connection was lost.
        now = _files(system, path, store)
        if any(now.get(one) != known for one, known in files.items()):
            raise GleanerError(f"{shown} changed while it was fetched: nothing was kept. Run this again.")
        return found
    except GleanerError:
        raise
    except ImportError as error:
        remedy = f": {install(store.package)}" if store.package else ""  # fsspec names those of others
        raise UsageError(f"{shown}: {error}{remedy}") from None
    except Exception as error:  # each client has errors of its own
        raise _in_words(error, shown, store) from None


def _files(system: Any, path: str, store: _Store) -> dict[str, dict[str, Any]]:
    """What the store tells of each file, by its path: that it is there, its size, and when it was written."""
    if not store.listed:
        return {path: {}}
    system.invalidate_cache()
    if any(mark in path for mark in WILD):
        found = system.glob(path, detail=True)
        return {one: info for one, info in found.items() if info["type"] == "file"}
    if not system.isdir(path):
        return {path: system.info(path)}
    return {
        one: info
        for one, info in system.find(path, detail=True).items()
        if info["type"] == "file" and not one.endswith("/") and not is_aside(_below(path, one).split("/"))
    }


def _name(one: str, path: str, uri: str) -> str:
    """What to call a file in rejects: as those here are called."""
    if any(mark in path for mark in WILD):
        return uri
    return _below(path, one) if one != path else uri.rstrip("/").rpartition("/")[2] or uri


def _below(folder: str, path: str) -> str:
    return path.removeprefix(folder.rstrip("/") + "/")


def _copy(system: Any, path: str, uri: str, store: _Store, advance: Advance) -> CorpusFile:
    """One file, fetched whole."""
    from fsspec.callbacks import Callback  # noqa: PLC0415

    class Told(Callback):  # type: ignore[misc]
        def call(self, *_: Any, **__: Any) -> None:
            advance(self.value)

    def fill(name: str) -> None:
        for attempt in Retrying(
            retry=retry_if_exception(_may_pass),
            stop=stop_after_attempt(store.tries),
            wait=wait_random_exponential(max=WAIT_S),
            reraise=True,
        ):
            with attempt:
                system.get_file(path, name, callback=Told())

    try:
        return temporary(fill, uri)
    except OSError as error:
        if error.errno in _FULL:
            raise no_copy(uri, error) from None
        raise


def _options(fsspec: Any, protocol: str, timeout_s: float) -> dict[str, Any]:
    """What the clients' own defaults get wrong, below what the user has set for fsspec."""
    ours: dict[str, dict[str, Any]] = {}
    if protocol in ("s3", "s3a"):
        ours = {"config_kwargs": {"connect_timeout": timeout_s, "read_timeout": timeout_s}}
    elif protocol in ("http", "https", "gs", "gcs"):
        from aiohttp import ClientTimeout  # noqa: PLC0415

        # Theirs is of five minutes for a whole file. Proxies and ~/.netrc are heeded by every other client.
        timeout = ClientTimeout(total=None, sock_connect=timeout_s, sock_read=timeout_s)
        name = "client_kwargs" if protocol in ("http", "https") else "session_kwargs"
        ours = {name: {"timeout": timeout, "trust_env": True}}
    given = fsspec.config.conf.get(protocol, {})
    options = {key: {**value, **given.get(key, {})} for key, value in ours.items()}
    return {protocol: options} if options else {}


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error and what it came of: clients wrap one another's."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _status(error: BaseException) -> int | None:
    """The HTTP status that a client's error tells of."""
    for each in _chain(error):
        response: Any = getattr(each, "response", None)  # of requests, httpx or botocore
        if isinstance(response, dict):
            response = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        code = getattr(each, "code", None) if type(each).__name__ == "HttpError" else None  # gcsfs's
        for value in (getattr(each, "status", None), code, response):
            number = str(getattr(value, "status_code", value))
            if number.isdecimal() and 400 <= int(number) < 600:
                return int(number)
    return None


def _may_pass(error: BaseException) -> bool:
    """Whether the same request may well succeed a moment later."""
    if isinstance(error, FileNotFoundError) or getattr(error, "errno", None) in _FULL:
        return False
    status = _status(error)
    lost = isinstance(error, OSError | TimeoutError) or type(error).__module__.startswith("aiohttp")
    return lost and (status is None or status in _PASSING)


def _in_words(error: Exception, shown: str, store: _Store) -> GleanerError:
    status, names = _status(error), [type(each).__name__ for each in _chain(error)]
    cause = _cause(error)
    if (
        status in _REFUSED
        or isinstance(error, PermissionError)
        or cause.startswith("Forbidden")  # all that gcsfs says of a 403
        or any(mark in name for mark in _NO_KEY for name in names)
    ):
        return GleanerError(f"can't fetch {shown}: access was refused ({cause}): {store.remedy}")
    if status == 404 or isinstance(error, FileNotFoundError):
        return UsageError(f"no file {shown}: check the address of the corpus{'' if store.listed else _ONE}")
    if isinstance(error, ValueError | NotImplementedError):  # a protocol that is none
        return UsageError(f"{shown}: {cause}")
    return GleanerError(f"can't fetch {shown}: {cause}. Nothing was kept: run this again.")


def _cause(error: BaseException) -> str:
    """The first line of what an error says, without what addresses may hold."""
    if isinstance(error, TimeoutError) and not str(error):
        return "nothing came any more (GLEANER_FETCH_TIMEOUT_S)"
    status, message = getattr(error, "status", None), getattr(error, "message", None)
    said = f"{status} {message}" if status and message else getattr(error, "strerror", None) or str(error)
    first = (said.strip().splitlines() or [type(error).__name__])[0]
    return _URL.sub(lambda found: without_secrets(found.group()), first).rstrip(".")
