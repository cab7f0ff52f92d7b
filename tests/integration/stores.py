"""Servers on loopback that hold corpora: a web server, the Hugging Face Hub's API, and a way to S3 and GCS servers on
which everything that happens to connections can be made to happen."""

import http.client
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

HOST = "127.0.0.1"
#: Seconds between two pieces of a body that comes slowly.
PAUSE_S = 0.1
#: Headers that belong to one connection.
_OF_THE_CONNECTION = ("connection", "transfer-encoding", "content-length", "date", "server")


@dataclass
class Request:
    method: str
    target: str
    headers: dict[str, str]
    body: bytes = b""

    @property
    def path(self) -> str:
        return unquote(urlsplit(self.target).path)


@dataclass
class Answer:
    """``pieces``: send the body in so many, with a pause between them. ``sized``: say how long it is."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    pieces: int = 1
    sized: bool = True


@dataclass
class Fault:
    """What happens to the next requests of a kind.

    :param where: part of the target. :param status: answered instead. :param keep: bytes of the body before the
        connection is cut. :param hang: cut only once the server stops. :param then: done after the answer.
    """

    where: str
    times: int = 1
    method: str = "GET"
    status: int | None = None
    keep: int | None = None
    hang: bool = False
    then: Callable[[], Any] = lambda: None

    def meets(self, request: Request) -> bool:
        return self.times > 0 and request.method == self.method and self.where in unquote(request.target)


Respond = Callable[[Request], Answer]


class Server:
    """An HTTP server that answers as it is told, but for its faults."""

    def __init__(self, respond: Respond) -> None:
        self.faults: list[Fault] = []
        self.seen: list[Request] = []
        self.stopping = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                request = Request(self.command, self.path, dict(self.headers), body)
                outer.seen.append(request)
                fault = next((fault for fault in outer.faults if fault.meets(request)), None)
                if fault is not None:
                    fault.times -= 1
                answer = respond(request) if fault is None or fault.status is None else Answer(fault.status, b"no")
                with suppress(ConnectionError):  # a client may go in the middle
                    self.send(answer, fault)
                if fault is not None:
                    fault.then()

            do_GET = do_POST = do_PUT = do_HEAD = do_DELETE = handle_any

            def send(self, answer: Answer, fault: Fault | None = None) -> None:
                self.send_response(answer.status)
                for name, value in answer.headers.items():
                    self.send_header(name, value)
                if self.command == "HEAD":
                    if "Content-Length" not in answer.headers:
                        self.send_header("Content-Length", str(len(answer.body)))
                elif answer.sized:
                    self.send_header("Content-Length", str(len(answer.body)))
                else:
                    self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                if self.command == "HEAD":
                    return
                cut = fault is not None and fault.keep is not None
                body = answer.body[: fault.keep] if fault is not None and cut else answer.body
                size = max(1, -(-len(body) // answer.pieces))
                for start in range(0, len(body), size):
                    if start:
                        outer.stopping.wait(PAUSE_S)
                    piece = body[start : start + size]
                    self.wfile.write(piece if answer.sized else b"%x\r\n%b\r\n" % (len(piece), piece))
                    self.wfile.flush()
                if not cut and not answer.sized:
                    self.wfile.write(b"0\r\n\r\n")
                if cut:
                    if fault is not None and fault.hang:
                        outer.stopping.wait()
                    self.close_connection = True
                    self.connection.shutdown(socket.SHUT_RDWR)

            def log_message(self, *_: Any) -> None:
                pass

        class Quiet(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: Any) -> None:
                pass  # a client that went

        self._server = Quiet((HOST, 0), Handler)
        self.address = f"{HOST}:{self._server.server_address[1]}"
        self.url = f"http://{self.address}"

    def __enter__(self) -> "Server":
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def reset(self) -> None:
        self.faults.clear()
        self.seen.clear()


@contextmanager
def way_to(upstream: str) -> Iterator[Server]:
    """A server that passes everything on to ``host:port``."""

    def respond(request: Request) -> Answer:
        connection = http.client.HTTPConnection(upstream, timeout=30)
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _OF_THE_CONNECTION}
        connection.request(request.method, request.target, request.body, {**headers, "Connection": "close"})
        answer = connection.getresponse()
        kept = {name: value for name, value in answer.getheaders() if name.lower() not in _OF_THE_CONNECTION}
        length = answer.getheader("Content-Length")
        if request.method == "HEAD" and length is not None:
            kept["Content-Length"] = length
        try:
            return Answer(answer.status, answer.read(), kept)
        finally:
            connection.close()

    with Server(respond) as server:
        yield server


class Hub:
    """Data sets by ``user/name``, as the Hub's API shows them. ``token``: what one must bring, if anything."""

    def __init__(self) -> None:
        self.files: dict[str, dict[str, bytes]] = {}
        self.token: str | None = None

    def respond(self, request: Request) -> Answer:
        if self.token is not None and request.headers.get("authorization") != f"Bearer {self.token}":
            headers = {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"}
            return Answer(401, b'{"error": "Invalid username or password."}', headers)
        parts = request.path.strip("/").removeprefix("api/").split("/")
        name, rest = "/".join(parts[1:3]), parts[3:]
        files = self.files.get(name) if parts[0] == "datasets" else None
        if files is None:
            return Answer(404, b'{"error": "Repository not found"}', {"X-Error-Code": "RepoNotFound"})
        match rest:
            case [] | ["revision", _]:
                return _json({"_id": "1", "id": name, "sha": "a" * 40, "private": False, "siblings": []})
            case ["paths-info", _]:
                asked = [path.strip("/") for path in _paths(request.body)]
                return _json([entry for path in asked for entry in self._entries(files, path) if entry["path"] == path])
            case ["tree", _, *folder]:
                deep = "recursive=true" in request.target.lower()
                return _json(self._below(files, "/".join(folder), deep))
            case ["resolve", _, *path]:
                return self._file(files, "/".join(path), request)
        return Answer(404)

    def _entries(self, files: dict[str, bytes], path: str) -> list[dict[str, Any]]:
        if path in files:
            return [{"type": "file", "path": path, "size": len(files[path]), "oid": _oid(files[path])}]
        below = [name for name in files if name.startswith(f"{path}/")]
        return [{"type": "directory", "path": path, "size": 0, "oid": "d" * 40}] if below else []

    def _below(self, files: dict[str, bytes], folder: str, deep: bool) -> list[dict[str, Any]]:
        prefix = f"{folder}/" if folder else ""
        names = [name.removeprefix(prefix) for name in files if name.startswith(prefix)]
        found = {name.partition("/")[0] for name in names}
        if deep:
            found |= {name[:end] for name in names for end in (*_slashes(name), None)}
        return [entry for name in sorted(found) for entry in self._entries(files, prefix + name)]

    def _file(self, files: dict[str, bytes], path: str, request: Request) -> Answer:
        if path not in files:
            return Answer(404, b"Entry not found", {"X-Error-Code": "EntryNotFound"})
        headers = {"X-Repo-Commit": "a" * 40, "ETag": f'"{_oid(files[path])}"', "Accept-Ranges": "bytes"}
        return ranged(request, files[path], headers)


def ranged(request: Request, content: bytes, headers: dict[str, str]) -> Answer:
    """A file, or the part of it that is asked for."""
    asked = request.headers.get("range") or request.headers.get("Range")
    if asked is None:
        return Answer(200, content, headers)
    first, _, last = asked.removeprefix("bytes=").partition("-")
    start, end = int(first), min(int(last) + 1 if last else len(content), len(content))
    return Answer(206, content[start:end], {**headers, "Content-Range": f"bytes {start}-{end - 1}/{len(content)}"})


def _paths(body: bytes) -> list[str]:
    if body.startswith(b"{"):
        return list(json.loads(body)["paths"])
    return [unquote(pair.partition("=")[2].replace("+", " ")) for pair in body.decode().split("&") if "paths=" in pair]


def _json(value: Any) -> Answer:
    return Answer(200, json.dumps(value).encode(), {"Content-Type": "application/json"})


def _slashes(name: str) -> list[int]:
    return [place for place, letter in enumerate(name) if letter == "/"]


def _oid(content: bytes) -> str:
    return f"{hash(content) & (2**160 - 1):040x}"
