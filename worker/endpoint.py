"""A worker's health over HTTP, for systemd, compose, Kubernetes and people."""

import errno
import logging
import socket
import socketserver
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any

from schemas.errors import GleanerError
from schemas.jsontext import dump_json
from schemas.settings import Settings
from worker.vitals import Vitals, WorkerState

logger = logging.getLogger(__name__)

#: The first port that is tried when none is set: nobody's by custom, and below those that Linux gives to clients.
FIRST_PORT = 9790
#: Ports that are tried: more workers than a host has GPUs.
PORTS = 32
#: Seconds that closing may take.
CLOSE_S = 0.1
#: Seconds that a client has to send its request line and headers.
REQUEST_TIMEOUT_S = 5.0

#: States in which no chunk is claimed.
_NOT_READY = {WorkerState.STARTING, WorkerState.DRAINING, WorkerState.STOPPING, WorkerState.STUCK}


class PortTaken(GleanerError):
    """The health endpoint's address can't be had: free it, or set GLEANER_HEALTH_HOST and GLEANER_HEALTH_PORT."""


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = 16

    def handle_error(self, *_: Any) -> None:
        """Clients that hang up are nothing to tell of."""

    def __init__(self, host: str, port: int, vitals: Vitals) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.vitals = vitals
        super().__init__((host, port), _Handler)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = REQUEST_TIMEOUT_S
    server_version = "gleaner"
    sys_version = ""

    def do_GET(self) -> None:
        """``/health``: red when stuck. ``/ready``: red when no chunk is claimed. Both with the vitals."""
        vitals = self.server.vitals.as_json()
        match self.path:
            case "/health":
                sound = vitals["state"] != WorkerState.STUCK
            case "/ready":
                sound = vitals["state"] not in _NOT_READY
            case _:
                self._answer(HTTPStatus.NOT_FOUND, {"error": "there is /health and /ready"})
                return
        self._answer(HTTPStatus.OK if sound else HTTPStatus.SERVICE_UNAVAILABLE, vitals)

    def _answer(self, status: HTTPStatus, body: dict[str, Any]) -> None:
        text = dump_json(body).encode() + b"\n"
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: Any) -> None:
        logger.debug("health: " + format, *args)


class Endpoint:
    """The server, on a thread of its own until :meth:`close`."""

    def __init__(self, host: str, port: int, vitals: Vitals) -> None:
        """:raises OSError: the address can't be had."""
        self._server = _Server(host, port, vitals)
        threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": CLOSE_S}, name="endpoint", daemon=True
        ).start()

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._server.server_address[1])

    def close(self) -> None:
        """Listen no more."""
        self._server.shutdown()
        self._server.server_close()


def open_endpoint(settings: Settings, vitals: Vitals) -> Endpoint | None:
    """Listen on the port that is set, else on the first free one from :data:`FIRST_PORT`; None if none of them is.

    :raises PortTaken: the port that is set is taken, or there is no such address here.
    """
    host, given = settings.health_host, settings.health_port
    for port in (given,) if given is not None else range(FIRST_PORT, FIRST_PORT + PORTS):
        try:
            endpoint = Endpoint(host, port, vitals)
        except OSError as error:
            if given is None and error.errno == errno.EADDRINUSE:
                continue
            raise PortTaken(
                f"no health endpoint on {host} port {port}: {error.strerror or error}. "
                "Set GLEANER_HEALTH_PORT to a free port, GLEANER_HEALTH_HOST to an address of this host."
            ) from None
        logger.info("health on http://%s:%d/health", f"[{host}]" if ":" in host else host, endpoint.port)
        return endpoint
    logger.warning(
        "no health endpoint: ports %d to %d of %s are taken. Set GLEANER_HEALTH_PORT to a free one.",
        FIRST_PORT, FIRST_PORT + PORTS - 1, host,
    )  # fmt: skip
    return None
