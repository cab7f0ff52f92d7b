"""A worker's health over HTTP: codes, what is told, ports, and clients that behave badly."""

import http.client
import json
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from answering_engine import AnsweringEngine

from schemas.settings import Settings
from worker import endpoint as endpoint_module
from worker.endpoint import Endpoint, PortTaken, open_endpoint
from worker.engine.base import Prompt, Request
from worker.pulse import PulsedEngine
from worker.vitals import Vitals

HOST = "127.0.0.1"
WAIT_S = 5
REQUEST = Request(Prompt(1), None, 1, 0.0, 1.0, 0)


class Told:
    """A worker's vitals, and its endpoint on a free port."""

    def __init__(self, **given: Any) -> None:
        self.settings = Settings(engine="stub", model="m", **given)
        self.engine = PulsedEngine(AnsweringEngine(lambda _: None))
        self.stopping = threading.Event()
        self.draining = threading.Event()
        self.vitals = Vitals(self.settings, "w@host", self.engine, self.stopping, self.draining)
        self.endpoint = Endpoint(HOST, 0, self.vitals)

    def ask(self, path: str, method: str = "GET") -> tuple[int, dict[str, Any]]:
        connection = http.client.HTTPConnection(HOST, self.endpoint.port, timeout=WAIT_S)
        connection.request(method, path)
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        is_json = answer.headers["Content-Type"] == "application/json"
        return answer.status, json.loads(body) if is_json else {}

    def codes(self) -> tuple[int, int]:
        """Of ``/health`` and ``/ready``."""
        return self.ask("/health")[0], self.ask("/ready")[0]


@pytest.fixture
def tell() -> Iterator[Callable[..., Told]]:
    started: list[Told] = []

    def start(**given: Any) -> Told:
        started.append(Told(**given))
        return started[-1]

    yield start
    for told in started:
        told.endpoint.close()


def test_the_states_and_their_codes(tell) -> None:
    told = tell()
    assert (told.ask("/health")[1]["state"], told.codes()) == ("starting", (200, 503))
    told.vitals.consume()
    assert (told.ask("/health")[1]["state"], told.codes()) == ("idle", (200, 200))
    with told.vitals.message():
        assert (told.ask("/health")[1]["state"], told.codes()) == ("working", (200, 200))
    told.draining.set()
    assert (told.ask("/health")[1]["state"], told.codes()) == ("draining", (200, 503))
    told.stopping.set()
    assert (told.ask("/health")[1]["state"], told.codes()) == ("stopping", (200, 503))


def test_a_stuck_worker_is_red_with_its_reason(tell) -> None:
    told = tell(stall_s=0.01)
    told.vitals.consume()
    told.vitals.look()
    with told.vitals.message():
        told.vitals.see_queue(4)
        told.engine.submit(REQUEST)
        threading.Event().wait(0.02)
        status, vitals = told.ask("/health")
    assert status == 503
    assert vitals.pop("quiet_s") >= 0
    assert vitals == {
        "state": "stuck",
        "reason": "the engine does not answer its requests",
        "worker": "w@host",
        "model": "m",
        "engine": "stub",
        "chunks_in_work": 1,
        "open_requests": 1,
        "queued_messages": 4,
    }
    assert told.codes() == (503, 503)


def test_there_is_nothing_else(tell) -> None:
    told = tell()
    assert told.ask("/")[0] == told.ask("/health?x=1")[0] == told.ask("/../etc/passwd")[0] == 404
    assert told.ask("/health", "POST")[0] == told.ask("/health", "PUT")[0] == 501


def test_it_does_not_say_what_it_runs_on(tell) -> None:
    with socket.create_connection((HOST, tell().endpoint.port), WAIT_S) as client:
        client.sendall(b"GET /health HTTP/1.0\r\n\r\n")
        head = b"".join(iter(lambda: client.recv(4096), b"")).partition(b"\r\n\r\n")[0]
    assert b"Server: gleaner" in head
    assert b"Python" not in head


def test_clients_that_say_nothing_hold_up_nobody_and_are_sent_away(tell, monkeypatch) -> None:
    monkeypatch.setattr(endpoint_module._Handler, "timeout", 0.2)
    told = tell()
    idle = [socket.create_connection((HOST, told.endpoint.port), WAIT_S) for _ in range(3)]
    assert told.ask("/health")[0] == 200
    for client in idle:
        assert client.recv(1) == b""
        client.close()


def test_a_client_that_hangs_up_leaves_no_trace(tell, capfd) -> None:
    told = tell()
    with socket.create_connection((HOST, told.endpoint.port), WAIT_S) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        client.sendall(b"GET /health HTTP/1.0\r\n\r\n")
    assert told.ask("/health")[0] == 200
    assert "Traceback" not in capfd.readouterr().err


def _settings(**given: Any) -> Settings:
    return Settings(engine="stub", **given)


def test_two_workers_of_a_host_take_the_first_two_free_ports(tell, monkeypatch, caplog) -> None:
    caplog.set_level("INFO")
    told = tell()
    monkeypatch.setattr(endpoint_module, "FIRST_PORT", told.endpoint.port)  # taken
    opened = [open_endpoint(_settings(), told.vitals) for _ in range(2)]
    ports = [one.port for one in opened if one is not None]
    for one in opened:
        assert one is not None
        assert f"health on http://127.0.0.1:{one.port}/health" in caplog.text
        one.close()
    assert told.endpoint.port < ports[0] < ports[1] < told.endpoint.port + endpoint_module.PORTS


def test_without_a_free_port_a_worker_works_all_the_same(tell, monkeypatch, caplog) -> None:
    told = tell()
    monkeypatch.setattr(endpoint_module, "FIRST_PORT", told.endpoint.port)
    monkeypatch.setattr(endpoint_module, "PORTS", 1)
    assert open_endpoint(_settings(), told.vitals) is None
    assert "Set GLEANER_HEALTH_PORT to a free one" in caplog.text


@pytest.mark.parametrize("host", [HOST, "192.0.2.1", "no.such.host.invalid"])
def test_an_address_that_was_asked_for_and_cant_be_had(tell, host) -> None:
    told = tell()
    with pytest.raises(PortTaken, match=f"no health endpoint on {host} port {told.endpoint.port}: .*Set GLEANER_"):
        open_endpoint(_settings(health_host=host, health_port=told.endpoint.port), told.vitals)


def test_ipv6(tell, caplog) -> None:
    caplog.set_level("INFO")
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6 here")
    opened = open_endpoint(_settings(health_host="::1"), tell().vitals)
    assert opened is not None
    assert f"health on http://[::1]:{opened.port}/health" in caplog.text
    opened.close()
