"""Label specs are proven once, whoever asks; what failed is tried again."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from answering_engine import AnsweringEngine, generation

from schemas.label_spec import load_label_spec
from schemas.outcomes import CanaryFailed, EngineLost
from schemas.settings import Settings
from worker import specs
from worker.engine.plain_label import plain_label_text
from worker.specs import Specs, prepared

THREADS = 6
WAIT_S = 10
SPEC, _ = load_label_spec("packages")
GOOD = plain_label_text(SPEC.schema_text)
SETTINGS = Settings(engine="stub")


@pytest.fixture
def loaded(monkeypatch) -> list[int]:
    """Ids that were loaded; in place of a database."""
    ids: list[int] = []

    def load(self: Specs, label_spec_id: int):
        ids.append(label_spec_id)
        return prepared(SPEC, SETTINGS, self._engine)

    monkeypatch.setattr(Specs, "_load", load)
    return ids


def ask(shelf: Specs) -> object:
    try:
        return shelf.get(1, lambda: None)
    except CanaryFailed as error:
        return error


def ask_at_once(engine: AnsweringEngine, shelf: Specs, text: str) -> list[object]:
    """Asks from many threads; the canary is answered when all of them wait for it."""
    with ThreadPoolExecutor(THREADS) as pool:
        answers = [pool.submit(ask, shelf) for _ in range(THREADS)]
        deadline = time.monotonic() + WAIT_S
        while not engine.futures or len(shelf._kept[1]._condition._waiters) < THREADS - 1:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        engine.futures[0].set_result(generation(text))
        return [answer.result(timeout=WAIT_S) for answer in answers]


def test_threads_share_one_canary(loaded) -> None:
    engine = AnsweringEngine(lambda _: None)
    shelf = Specs(SETTINGS, None, engine)
    answers = ask_at_once(engine, shelf, GOOD)
    assert len(engine.requests) == 1
    assert all(answer is answers[0] for answer in answers)
    assert shelf.get(1, lambda: None) is answers[0]
    assert loaded == [1]


def test_what_was_refused_is_asked_again(loaded) -> None:
    engine = AnsweringEngine(lambda _: "banana")
    shelf = Specs(SETTINGS, None, engine)
    with pytest.raises(CanaryFailed):
        shelf.get(1, lambda: None)
    engine._answer = lambda _: GOOD
    assert shelf.get(1, lambda: None)[0].spec == SPEC
    assert loaded == [1, 1]


def test_waiting_threads_get_the_failure_too(loaded) -> None:
    engine = AnsweringEngine(lambda _: None)
    answers = ask_at_once(engine, Specs(SETTINGS, None, engine), "banana")
    assert len(engine.requests) == 1
    assert all(isinstance(answer, CanaryFailed) for answer in answers)


def test_an_engine_that_dies_meanwhile_frees_all_who_wait(loaded) -> None:
    engine = AnsweringEngine(lambda _: None)
    shelf = Specs(SETTINGS, None, engine)

    def look() -> None:
        raise EngineLost("gone")

    with pytest.raises(EngineLost):
        shelf.get(1, look)
    assert engine.futures[0].cancelled()


def test_the_oldest_is_forgotten(loaded, monkeypatch) -> None:
    monkeypatch.setattr(specs, "SPECS", 2)
    shelf = Specs(SETTINGS, None, AnsweringEngine(lambda _: GOOD))
    for label_spec_id in (1, 2, 1, 3, 1, 2):
        shelf.get(label_spec_id, lambda: None)
    assert loaded == [1, 2, 3, 2]
