import json

import pytest
from pydantic import ValidationError

from schemas.queue import LABEL_CHUNK, ChunkMessage, broker_address, create_app, publish, queue_name
from schemas.settings import Settings

MESSAGE = ChunkMessage(job_id=7, chunk_no=3, first_ordinal=768, last_ordinal=1023)


@pytest.fixture
def settings(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Settings(model="Org/Model-7B")


def test_queue_names_are_readable_and_the_same_each_time():
    assert queue_name("Qwen/Qwen3-8B") == queue_name("Qwen/Qwen3-8B")
    assert queue_name("Qwen/Qwen3-8B").startswith("label.qwen-qwen3-8b.")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("org/model", "org-model"),
        ("Model", "model"),
        ("a" * 100 + "x", "a" * 100 + "y"),
        ("模型一", "模型二"),
        ("a:b", "a@b"),
    ],
)
def test_two_models_never_share_a_queue(one, other):
    assert queue_name(one) != queue_name(other)


@pytest.mark.parametrize("model", ["a", "a" * 200, "org/模型", "/// ", "a b\nc*?[x]"])
def test_queue_names_are_short_and_hold_nothing_that_redis_reads_as_a_pattern(model):
    name = queue_name(model)
    assert len(name) < 100
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789.-")


def test_the_queue_of_a_model_never_moves():
    # Messages that wait in Redis must be found again after an upgrade.
    assert queue_name("smollm2-135m-instruct") == "label.smollm2-135m-instruct.c77a1476"


def test_a_message_holds_ids_and_numbers_only():
    assert MESSAGE.model_dump() == {"job_id": 7, "chunk_no": 3, "first_ordinal": 768, "last_ordinal": 1023}
    assert all(field.annotation is int for field in ChunkMessage.model_fields.values())


def test_a_message_reads_well():
    assert str(MESSAGE) == "job 7, chunk 3, rows 768-1023"


@pytest.mark.parametrize(
    "fields",
    [
        {"job_id": 0},
        {"chunk_no": -1},
        {"first_ordinal": -1},
        {"last_ordinal": None},
        {"job_id": "x"},
        {"text": "a document"},
    ],
)
def test_a_message_takes_nothing_else(fields):
    with pytest.raises(ValidationError):
        ChunkMessage(**{**MESSAGE.model_dump(), **fields})


def test_a_message_cannot_be_changed():
    with pytest.raises(ValidationError, match="frozen"):
        MESSAGE.chunk_no = 4


def test_published_messages_are_small_and_name_their_chunk(settings):
    app = create_app(settings)
    app.conf.update(broker_url="memory://", broker_transport="memory", broker_transport_options={})
    messages = [MESSAGE.model_copy(update={"chunk_no": number}) for number in range(3)]
    publish(app, settings.model, messages)
    with app.connection_for_read() as connection:
        queue = connection.SimpleQueue(queue_name(settings.model))
        received = [queue.get(block=False) for _ in messages]
        assert queue.qsize() == 0
        queue.close()
    for sent, got in zip(messages, received, strict=True):
        args, kwargs, _ = json.loads(got.body)
        assert args == []
        assert ChunkMessage(**kwargs) == sent
        assert got.headers["task"] == LABEL_CHUNK
        assert got.headers["kwargsrepr"] == str(sent)
        assert got.headers["shadow"] == "label job 7"
        assert len(got.body) < 500


def test_a_chunk_is_acknowledged_late_and_its_result_kept_nowhere(settings):
    conf = create_app(settings).conf
    assert conf.task_acks_late
    assert conf.task_ignore_result
    assert conf.result_backend is None
    assert conf.worker_prefetch_multiplier == 1
    assert conf.worker_pool == "threads"
    assert conf.accept_content == ["json"]


def test_a_worker_listens_to_its_model_only(settings):
    conf = create_app(settings).conf
    assert [queue.name for queue in conf.task_queues] == [queue_name("Org/Model-7B")]
    assert conf.task_default_queue == queue_name("Org/Model-7B")


def test_the_address_for_messages_has_no_password():
    settings = Settings(broker_url="redis://user:s3cret@broker.example:6380/2")
    assert broker_address(settings) == "broker.example:6380"
