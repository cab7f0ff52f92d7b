"""The Celery app, one queue a model, and the message that names a chunk. Redis is a courier: it may forget all."""

import re
from collections.abc import Iterable
from hashlib import sha256
from typing import Any
from urllib.parse import urlsplit

from celery import Celery
from kombu import Queue
from kombu.exceptions import KombuError, OperationalError
from pydantic import BaseModel, ConfigDict, Field
from redis.exceptions import AuthenticationError, RedisError

from schemas.errors import BrokerUnavailable
from schemas.settings import Settings, load_settings, where_from

LABEL_CHUNK = "gleaner.label_chunk"

#: Messages a batch to the broker: kombu's pipeline gains nothing beyond a few hundred.
PUBLISH_BATCH = 500
#: Seconds to wait for workers to say which queues they take from. They answer in milliseconds.
INSPECT_S = 1.0


class ChunkMessage(BaseModel):
    """What travels: ids and row numbers, never a document's text."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    job_id: int = Field(ge=1)
    chunk_no: int = Field(ge=0)
    first_ordinal: int = Field(ge=0, description="For people who read Flower; the worker asks Postgres.")
    last_ordinal: int = Field(ge=0)

    def __str__(self) -> str:
        return f"job {self.job_id}, chunk {self.chunk_no}, rows {self.first_ordinal}-{self.last_ordinal}"


def queue_name(model: str) -> str:
    """The queue of a model: readable, and never the same for two models."""
    slug = re.sub(r"[^a-z0-9.-]+", "-", model.lower()).strip("-")[:60]
    return f"label.{slug}.{sha256(model.encode()).hexdigest()[:8]}"


def create_app(settings: Settings) -> Celery:
    """The Celery app, configured. Nothing is connected until it is used."""
    app = Celery("gleaner", broker=settings.broker_url.get_secret_value(), set_as_current=False)
    queue = queue_name(settings.model)
    app.conf.update(
        task_queues=[Queue(queue)],
        task_default_queue=queue,
        task_create_missing_queues=True,
        # Rows are the results: Celery keeps none, and a chunk is acknowledged when its rows are written.
        result_backend=None,
        task_ignore_result=True,
        task_store_errors_even_if_ignored=False,
        task_acks_late=True,
        worker_prefetch_multiplier=1,
        # A lost connection is renewed; the chunks go on and are acknowledged when they end (schemas.transport).
        worker_cancel_long_running_tasks_on_connection_loss=False,
        worker_pool="threads",
        worker_hijack_root_logger=False,
        worker_send_task_events=True,
        worker_enable_remote_control=True,
        task_serializer="json",
        accept_content=["json"],
        enable_utc=True,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_transport="schemas.transport:Transport",
        broker_transport_options={
            "global_keyprefix": settings.broker_key_prefix,
            "visibility_timeout": settings.broker_visibility_timeout_s,
            "socket_timeout": 30,
            "socket_connect_timeout": settings.broker_connect_timeout_s,
            "socket_keepalive": True,
            # Half-open connections have stalled workers in silence: ask every 15 s.
            "health_check_interval": 15,
            "unacked_restore_interval": min(30, settings.broker_visibility_timeout_s),
            "unacked_restore_throttle": 1,
        },
    )
    return app


def __getattr__(name: str) -> Any:
    # `celery -A schemas.queue:app flower` looks for `app`; importing this module must not need valid settings.
    if name == "app":
        return create_app(load_settings())
    raise AttributeError(name)


def broker_address(settings: Settings) -> str:
    """Where the broker is, without the password: for messages."""
    parts = urlsplit(settings.broker_url.get_secret_value())
    return f"{parts.hostname}:{parts.port or 6379}"


def require_broker(app: Celery, settings: Settings) -> None:
    """Connect once, within the connect timeout.

    :raises BrokerUnavailable: says where it was looked for, why it failed and what to set.
    """
    try:
        with app.connection_for_write() as connection:
            connection.ensure_connection(max_retries=0, timeout=settings.broker_connect_timeout_s)
            connection.default_channel.client.ping()
    except (OperationalError, OSError, ValueError) as error:
        raise _unavailable(settings, error) from None
    except Exception as error:
        # redis-py raises classes of its own (AuthenticationError and its like) that kombu does not wrap.
        if type(error).__module__.partition(".")[0] not in {"redis", "kombu"}:
            raise
        raise _unavailable(settings, error) from None


def _unavailable(settings: Settings, error: Exception) -> BrokerUnavailable:
    cause = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if isinstance(error.__cause__ or error, AuthenticationError):
        remedy = "It is up and let us not in: check user and password in GLEANER_BROKER_URL"
    else:
        remedy = "Start it (`make up` for a local one) or set GLEANER_BROKER_URL"
    return BrokerUnavailable(
        f"no connection to the broker at {broker_address(settings)}: {cause.rstrip('.')}. "
        f"{remedy}{where_from(settings, 'broker_url')}."
    )


def queued_messages(app: Celery, model: str) -> int:
    """How many messages wait in the model's queue. Those that workers hold are not among them.

    :raises redis.RedisError: (or kombu's ``OperationalError``) when the broker can't be reached.
    """
    with app.connection_for_write() as connection:
        count: int = connection.default_channel.client.llen(queue_name(model))
    return count


def consumed_queues(app: Celery) -> set[str] | None:
    """The queues that live workers take from; None when the broker does not say. Takes a second."""
    try:
        answers = app.control.inspect(timeout=INSPECT_S).active_queues() or {}
    except (KombuError, OperationalError, RedisError, OSError):
        return None
    return {queue["name"] for queues in answers.values() for queue in queues}


def publish(app: Celery, model: str, messages: Iterable[ChunkMessage]) -> None:
    """Publish one batch of chunk messages to the model's queue.

    Returns when the broker has them all; at an error some may be there, which costs little: a message too many finds
    nothing to claim.
    """
    queue = queue_name(model)
    with app.producer_or_acquire() as producer, producer.batch(max_size=PUBLISH_BATCH):
        for message in messages:
            app.send_task(
                LABEL_CHUNK,
                kwargs=message.model_dump(),
                queue=queue,
                producer=producer,
                # What Flower shows; `shadow` is a Prometheus label there: one a job, never one a chunk.
                kwargsrepr=str(message),
                argsrepr="",
                shadow=f"label job {message.job_id}",
            )
