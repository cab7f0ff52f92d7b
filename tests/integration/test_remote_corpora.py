"""Corpora by URL, by the real clients from servers on loopback: read, or refused in words with nothing kept."""

import gc
import gzip
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from stores import HOST, Answer, Fault, Hub, Request, Server, way_to

from producer.readers import open_reader
from schemas.database import Connection
from schemas.errors import GleanerError, UsageError
from schemas.settings import Settings

RECORDS = [{"id": f"d{n}", "text": f"Text number {n}. " * 9} for n in range(400)]
MORE = [{**record, "id": f"more-{n}"} for n, record in enumerate(RECORDS)]
SECRET = "s3cr3t-of-the-test"
USER = f"me:{SECRET}@"
#: Far below what clients wait for by themselves, far above what a loaded machine takes.
SETTINGS = Settings(fetch_timeout_s=3)


def lines(records: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(record) + "\n" for record in records).encode()


#: A folder as Spark leaves it.
FILES = {"a.jsonl": lines(RECORDS), "more/b.jsonl.gz": gzip.compress(lines(MORE)), "more/_SUCCESS": b"-", ".x": b"-"}


@dataclass
class Store:
    """Where the same files lie. ``put``: writes one of them anew."""

    url: str
    server: Server
    package: str
    environment: dict[str, str]
    put: Callable[[str, bytes], Any]


def need(*modules: str) -> None:
    for module in modules:
        if importlib.util.find_spec(module) is None:
            message = f"the package of {module} is missing: pip install -e '.[local,dev]'"
            if os.environ.get("CI") == "true":
                pytest.fail(message)
            pytest.skip(message)


@pytest.fixture(scope="session")
def s3_store() -> Iterator[Store]:
    """An S3 server."""
    need("moto", "flask_cors", "s3fs")
    import logging

    import botocore.session
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    moto = ThreadedMotoServer(ip_address=HOST, port=0, verbose=False)
    moto.start()
    host, port = moto.get_host_and_port()
    client = botocore.session.get_session().create_client(
        "s3",
        endpoint_url=f"http://{host}:{port}",
        aws_access_key_id="key",
        aws_secret_access_key=SECRET,
        region_name="us-east-1",
    )
    client.create_bucket(Bucket="corpora")

    def put(name: str, content: bytes) -> None:
        client.put_object(Bucket="corpora", Key=f"set/{name}", Body=content, ACL="public-read")

    with way_to(f"{host}:{port}") as server:
        environment = {
            "AWS_ENDPOINT_URL": server.url,
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        yield Store("s3://corpora/set", server, "s3fs", environment, put)
    moto.stop()
    client.close()


@pytest.fixture(scope="session")
def gs_store() -> Iterator[Store]:
    """A server of Google's JSON API."""
    need("gcp_storage_emulator", "gcsfs")
    import urllib.request

    from gcp_storage_emulator.server import create_server

    from ops.service import free_port

    port = free_port()
    address = f"{HOST}:{port}"
    emulator = create_server(HOST, port, in_memory=True, default_bucket="corpora")
    emulator.start()

    def put(name: str, content: bytes) -> None:
        url = f"http://{address}/upload/storage/v1/b/corpora/o?uploadType=media&name=set/{name}"
        headers = {"Content-Type": "application/octet-stream"}
        urllib.request.urlopen(urllib.request.Request(url, content, headers, method="POST")).close()

    with way_to(address) as server:
        environment = {"STORAGE_EMULATOR_HOST": server.url, "NO_GCE_CHECK": "true"}
        yield Store("gs://corpora/set", server, "gcsfs", environment, put)
    emulator.stop()


def _hub_environment(server: Server) -> dict[str, str]:
    # An engine with its model on the disk, in an earlier test, leaves this process off line.
    return {"HF_ENDPOINT": server.url, "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_OFFLINE": "0"}


@pytest.fixture(scope="session")
def hf_store() -> Iterator[Store]:
    """The Hub."""
    need("huggingface_hub")
    hub = Hub()
    with Server(hub.respond) as server:
        files: dict[str, bytes] = hub.files.setdefault("me/corpora", {})

        def put(name: str, content: bytes) -> None:
            files[f"set/{name}"] = content

        yield Store("hf://datasets/me/corpora/set", server, "huggingface_hub", _hub_environment(server), put)


def forget_clients() -> None:
    """Clients keep what they were told of keys and servers."""
    from fsspec import available_protocols, get_filesystem_class, registry

    for protocol in set(available_protocols()) & set(registry):
        get_filesystem_class(protocol).clear_instance_cache()


@pytest.fixture(params=["s3", "gs", "hf"])
def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """Each store in turn, with its files as they were, and nothing amiss."""
    found: Store = request.getfixturevalue(f"{request.param}_store")
    for name, content in FILES.items():
        found.put(name, content)
    for name, value in found.environment.items():
        monkeypatch.setenv(name, value)
    if request.param == "hf":
        # Read from the environment when the client was imported.
        files = f"{found.server.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", found.server.url)
        monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", files)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    found.server.reset()
    yield found
    forget_clients()


def web(request: Request) -> Answer:
    """A web server with a file, as servers differ in giving it."""
    match request.path:
        case "/a.jsonl" | "/signed":
            return Answer(200, FILES["a.jsonl"])
        case "/b.jsonl.gz":
            return Answer(200, FILES["more/b.jsonl.gz"])
        case "/unsized":
            return Answer(200, FILES["a.jsonl"], sized=False)
        case "/slow":
            return Answer(200, FILES["a.jsonl"], pieces=50)
        case "/moved":
            return Answer(302, headers={"Location": f"/signed?key={SECRET}"})
        case "/page":
            return Answer(200, b"<!DOCTYPE html>\n<html><a href='a.jsonl'>a</a></html>")
        case "/mine" if request.headers.get("Authorization"):
            return Answer(200, FILES["a.jsonl"])
        case "/mine":
            return Answer(401)
    return Answer(404)


@pytest.fixture
def site() -> Iterator[Server]:
    """A web server."""
    need("fsspec", "aiohttp")
    with Server(web) as server:
        yield server
    forget_clients()


def copies() -> set[str]:
    gc.collect()  # a copy lives as long as its reader
    return {name for name in os.listdir(tempfile.gettempdir()) if name.startswith("gleaner-")}


def ids(url: str, settings: Settings = SETTINGS) -> list[str]:
    return [record.content["id"] for record in open_reader(url, settings).records(lambda _: None)]  # type: ignore[index]


def refused(url: str, kind: type[GleanerError] = GleanerError) -> str:
    """What is said of a URL that can't be had; no copy of it is left."""
    before = copies()
    with pytest.raises(kind) as caught:
        open_reader(url, SETTINGS)
    assert caught.type is kind
    said = str(caught.value)
    del caught  # its frames hold copies
    assert copies() <= before
    assert SECRET not in said
    assert len(said.splitlines()) == 1
    return said


A, B = [record["id"] for record in RECORDS], [record["id"] for record in MORE]


def test_one_file_a_glob_and_a_folder(store: Store) -> None:
    for place, expected in (
        ("/a.jsonl", A),
        ("/more/b.jsonl.gz", B),
        ("/*.jsonl", A),
        ("/more/*.gz", B),
        ("/**/*.jsonl*", A + B),
        ("", A + B),
        ("/", A + B),
        ("/more", B),
    ):
        assert ids(store.url + place) == expected, place


def test_what_lies_beside_the_data_is_no_part_of_it(store: Store) -> None:
    reader = open_reader(store.url, SETTINGS)
    assert sorted({record.source for record in reader.records(lambda _: None)}) == ["a.jsonl", "more/b.jsonl.gz"]


def test_files_of_text_are_told_apart_by_their_paths(store: Store) -> None:
    for name in ("texts/one/1.txt", "texts/two/1.txt"):
        store.put(name, b"A text.")
    reader = open_reader(f"{store.url}/texts", SETTINGS)
    paths = [record.content["path"] for record in reader.records(lambda _: None)]  # type: ignore[index]
    assert paths == ["one/1.txt", "two/1.txt"]


def test_what_is_not_there_is_said(store: Store) -> None:
    assert refused(f"{store.url}/none.jsonl", UsageError).startswith(f"no file {store.url}/none.jsonl: check")
    assert refused(f"{store.url}/*.csv", UsageError).startswith(f"no file matches {store.url}/*.csv: check")


@pytest.mark.parametrize("status", [401, 403])
def test_who_is_not_let_in_is_told_how(store: Store, status: int) -> None:
    store.server.faults = [Fault("", 99, method, status) for method in ("GET", "HEAD", "POST")]
    said = refused(f"{store.url}/a.jsonl")
    assert f"can't fetch {store.url}/a.jsonl: access was refused (" in said
    remedies = {"s3fs": "AWS_ACCESS_KEY_ID", "gcsfs": "GOOGLE_APPLICATION_CREDENTIALS", "huggingface_hub": "HF_TOKEN"}
    assert remedies[store.package] in said


def test_a_connection_that_drops_half_way_is_taken_up_again(store: Store) -> None:
    store.server.faults = [Fault("a.jsonl", keep=20_000)]
    assert ids(f"{store.url}/a.jsonl") == A
    assert store.server.faults[0].times == 0


def test_a_server_in_trouble_is_asked_again(store: Store) -> None:
    store.server.faults = [Fault("a.jsonl", 2, status=503)]
    assert ids(f"{store.url}/a.jsonl") == A
    assert store.server.faults[0].times == 0


def test_a_file_that_changes_as_it_is_fetched_is_refused(store: Store) -> None:
    changed = FILES["a.jsonl"].replace(b"Text", b"Word")
    content = {"s3fs": "/corpora/set/a.jsonl", "gcsfs": "alt=media", "huggingface_hub": "/resolve/"}[store.package]
    store.server.faults = [Fault(content, then=lambda: store.put("a.jsonl", changed))]
    assert "changed while it was fetched: nothing was kept" in refused(f"{store.url}/a.jsonl")


@pytest.mark.parametrize("store", ["hf"], indirect=True)  # the others' clients try for half a minute and more
def test_a_connection_that_keeps_dropping_is_an_error(store: Store) -> None:
    store.server.faults = [Fault("a.jsonl", 99, keep=20_000)]
    assert refused(f"{store.url}/a.jsonl").endswith("Nothing was kept: run this again.")


def test_a_bucket_without_a_key(s3_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    s3_store.server.reset()
    for name, value in s3_store.environment.items():
        if "KEY" not in name:
            monkeypatch.setenv(name, value)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, "/nowhere")
    forget_clients()
    said = refused(f"{s3_store.url}/a.jsonl")
    assert "AWS_ACCESS_KEY_ID" in said
    assert s3_store.server.seen == []
    forget_clients()


def test_a_public_bucket_needs_no_key(run_cli: Callable, s3_store: Store) -> None:
    s3_store.server.reset()
    s3_store.put("a.jsonl", FILES["a.jsonl"])
    env = {name: value for name, value in s3_store.environment.items() if "KEY" not in name}
    call = ["preview", f"{s3_store.url}/a.jsonl", "--schema", "papers", "-n", "1"]
    done = run_cli(*call, env={**env, "FSSPEC_S3_ANON": "true"})
    assert done.returncode == 0, done.stderr
    assert s3_store.server.seen
    assert not any("authorization" in map(str.lower, request.headers) for request in s3_store.server.seen)


def test_a_gated_data_set_and_the_token_for_it(call_cli: Callable, run_cli: Callable, hf_store: Store) -> None:
    hub = Hub()
    hub.files["me/gated"] = {"a.jsonl": FILES["a.jsonl"]}
    hub.token = SECRET
    with Server(hub.respond) as server:
        call = ["preview", "hf://datasets/me/gated/a.jsonl", "--schema", "papers", "-n", "1"]
        env = {**_hub_environment(server), "HF_HOME": "/nowhere"}
        done = run_cli(*call, env=env)
        assert (done.returncode, done.stdout) == (1, "")
        assert "HF_TOKEN" in done.stderr
        done = run_cli(*call, env={**env, "HF_TOKEN": SECRET})
        assert done.returncode == 0, done.stderr
        assert SECRET not in done.stdout + done.stderr


def test_a_web_server_gives_a_file_in_many_ways(site: Server) -> None:
    for path in ("/a.jsonl", "/unsized", "/moved", "/slow", f"/signed?key={SECRET}"):
        reader = open_reader(site.url + path, SETTINGS)
        assert [record.content["id"] for record in reader.records(lambda _: None)] == A  # type: ignore[index]
        assert reader.uri == site.url + path.partition("?")[0]
    assert ids(f"{site.url}/b.jsonl.gz") == B
    assert ids(f"http://{USER}{site.address}/mine") == A


def test_what_a_web_server_does_not_give(site: Server) -> None:
    assert "no file" in refused(f"{site.url}/none.jsonl?key={SECRET}", UsageError)
    assert "can't be fetched from a web server" in refused(f"{site.url}/*.jsonl", UsageError)
    assert "is a web page" in refused(f"{site.url}/page?key={SECRET}", UsageError)
    assert "~/.netrc" in refused(f"{site.url}/mine?key={SECRET}")
    site.faults = [Fault("/signed", 99, status=403)]
    assert "a signed address may have run out" in refused(f"{site.url}/moved?key={SECRET}")


@pytest.mark.parametrize(
    ("path", "fault"),
    [
        ("/a.jsonl", {"keep": 20_000}),
        ("/a.jsonl", {"keep": 0}),
        ("/unsized", {"keep": 20_000}),
        ("/a.jsonl", {"status": 500}),
        ("/a.jsonl", {"status": 429}),
    ],
)
def test_a_web_server_in_trouble_is_asked_again(site: Server, path: str, fault: dict[str, int]) -> None:
    site.faults = [Fault(path, 2, **fault)]  # type: ignore[arg-type]
    assert ids(site.url + path) == A
    assert len(site.seen) == 3
    site.faults = [Fault(path, 3, **fault)]  # type: ignore[arg-type]
    said = refused(f"{site.url}{path}?key={SECRET}")
    assert said.startswith(f"can't fetch {site.url}{path}: ")
    assert said.endswith("Nothing was kept: run this again.")


def test_a_full_disk_is_said_at_once(site: Server) -> None:
    limited = ["sh", "-c", 'ulimit -f 1; exec "$@"', "sh", sys.executable, "-m", "producer"]
    answer = subprocess.run(
        [*limited, "preview", f"{site.url}/a.jsonl", "--schema", "papers"], capture_output=True, text=True, check=False
    )
    assert answer.returncode == 1, answer.stderr
    assert "TMPDIR names another place" in answer.stderr
    assert len(site.seen) == len({(request.method, request.target) for request in site.seen})


@pytest.mark.parametrize(("signum", "exit_code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)])
@pytest.mark.parametrize("source", ["url", "pipe"])
def test_a_producer_that_a_signal_ends_leaves_no_copy(
    start_cli: Callable, site: Server, tmp_path: Path, source: str, signum: signal.Signals, exit_code: int
) -> None:
    site.faults = [Fault("/a.jsonl", 1, keep=20_000, hang=True)]
    pipe, here = tmp_path / "pipe", tmp_path / "here"
    os.mkfifo(pipe)
    here.mkdir()
    corpus = f"{site.url}/a.jsonl" if source == "url" else pipe
    process = start_cli("preview", corpus, "--schema", "papers", env={"TMPDIR": str(here)})
    with pipe.open("wb") if source == "pipe" else nullcontext() as writer:
        if writer is not None:
            writer.write(lines(RECORDS))
            writer.flush()
        deadline = time.monotonic() + 60
        while not any(copy.stat().st_size for copy in here.iterdir()):
            assert process.poll() is None, process.stderr.read()
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert len(list(here.iterdir())) == 1
        process.send_signal(signum)
        _, stderr = process.communicate(timeout=60)
    assert (process.returncode, stderr) == (exit_code, "interrupted: run the same command again to continue\n")
    assert not list(here.iterdir())


def test_a_web_server_that_falls_silent_is_lost(site: Server) -> None:
    site.faults = [Fault("/a.jsonl", 1, keep=20_000, hang=True)]
    assert ids(f"{site.url}/a.jsonl", Settings(fetch_timeout_s=0.5)) == A
    site.faults = [Fault("/a.jsonl", 3, keep=20_000, hang=True)]
    with pytest.raises(GleanerError, match="GLEANER_FETCH_TIMEOUT_S"):
        open_reader(f"{site.url}/a.jsonl", Settings(fetch_timeout_s=0.5))


def test_a_job_over_a_corpus_by_url_holds_no_secret(
    run_cli: Callable, site: Server, store: Store, database: Connection, tmp_path: Path
) -> None:
    address = f"http://{USER}{site.address}/mine?key={SECRET}"
    done = run_cli("enqueue", address, f"{store.url}/more/b.jsonl.gz", "--schema", "papers", env=store.environment)
    assert done.returncode == 0, done.stderr
    assert SECRET not in done.stdout + done.stderr
    kept = database.execute("SELECT uri, name, document_count, rejected_count FROM gleaner.corpora").fetchall()
    uri = f"{site.url}/mine, {store.url}/more/b.jsonl.gz"
    assert kept == [{"uri": uri, "name": "mine", "document_count": 800, "rejected_count": 0}]
    site.faults = [Fault("/mine", 99, keep=100)]
    done = run_cli("enqueue", address, "--schema", "papers", "--name", "other")
    assert (done.returncode, done.stdout) == (1, "")
    assert SECRET not in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert database.execute("SELECT count(*) AS corpora FROM gleaner.corpora").fetchone() == {"corpora": 1}
