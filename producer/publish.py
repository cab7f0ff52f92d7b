"""Messages for the chunks that wait: as many in the queue as there are chunks, so that none is forgotten.

A message is a permit to claim one chunk of its model (see ``worker.lease``), so it is their number that counts. One
too many costs a worker one question to Postgres; one too few leaves a chunk waiting until the next count.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from celery import Celery
from kombu.exceptions import KombuError, OperationalError
from psycopg.types.json import Jsonb
from redis.exceptions import RedisError

from producer.progress import Progress
from schemas.database import Connection, queries
from schemas.errors import BrokerUnavailable, GleanerError
from schemas.queue import PUBLISH_BATCH, ChunkMessage, broker_address, publish, queued_messages, require_broker
from schemas.settings import Settings

#: Chunks read at a time: sorting those that wait is the dearer part of it.
READ_BATCH = 10 * PUBLISH_BATCH
#: Seconds between looks at whether somebody else has ended publishing: a statement may not wait for minutes.
LOCK_POLL_S = 0.2
#: Seconds to wait for that: a million chunks take less.
LOCK_S = 900.0


def publish_waiting(connection: Connection, app: Celery, settings: Settings, model: str, progress: Progress) -> int:
    """Publish messages for the chunks of a model that wait and have none. Returns the number of messages.

    Waits while somebody else publishes for the model.

    :raises GleanerError: when that takes too long.
    :raises BrokerUnavailable: when the broker goes away; what was published stays, the rest can follow.
    """
    deadline = time.monotonic() + LOCK_S
    while not queries.try_lock_publishing(connection, model=model):
        if time.monotonic() > deadline:
            raise GleanerError(
                f"somebody else has been publishing chunks of {model} for {LOCK_S:.0f} s. Nothing is lost: "
                "`producer reconcile`, or the same command again, publishes what is left."
            )
        time.sleep(LOCK_POLL_S)
    with _publishing(connection, model):
        return _publish_missing(connection, app, settings, model, progress)


def publish_after(
    done: str, connection: Connection, app: Celery, settings: Settings, model: str, progress: Progress
) -> int:
    """As :func:`publish_waiting`, after a change that stands whether or not the broker is there.

    :param done: the change, in words.
    :raises BrokerUnavailable: says that the change stands, and what publishes.
    """
    try:
        require_broker(app, settings)
        return publish_waiting(connection, app, settings, model, progress)
    except BrokerUnavailable as error:
        words = f"{done}: `producer reconcile` publishes the messages when the broker is back. Now: {error}"
        raise BrokerUnavailable(words) from None


def try_publish_waiting(connection: Connection, app: Celery, settings: Settings, model: str) -> int:
    """As :func:`publish_waiting`, but leaves it to whoever is publishing for the model already."""
    if not queries.try_lock_publishing(connection, model=model):
        return 0
    with _publishing(connection, model):
        return _publish_missing(connection, app, settings, model, lambda *_: None)


@contextmanager
def _publishing(connection: Connection, model: str) -> Iterator[None]:
    try:
        yield
    finally:
        if not connection.closed:  # else the lock went with it
            queries.unlock_publishing(connection, model=model)


def _publish_missing(connection: Connection, app: Celery, settings: Settings, model: str, progress: Progress) -> int:
    published = 0
    try:
        # In this order: a chunk that is claimed in between is then not missed.
        queued = queued_messages(app, model)
        missing = queries.count_waiting(connection, model=model) - queued
        while published < missing:
            batch = min(READ_BATCH, missing - published)
            chunks = list(queries.chunks_to_publish(connection, model=model, batch=batch))
            for start in range(0, len(chunks), PUBLISH_BATCH):
                part = chunks[start : start + PUBLISH_BATCH]
                publish(app, model, [ChunkMessage(**chunk) for chunk in part])
                queries.mark_published(
                    connection, chunks=Jsonb([{key: chunk[key] for key in ("job_id", "chunk_no")} for chunk in part])
                )
                published += len(part)
                progress("publishing", published, missing)
            if len(chunks) < batch:  # workers took the others meanwhile
                break
    except (KombuError, OperationalError, RedisError, OSError) as error:
        cause = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise BrokerUnavailable(
            f"the broker at {broker_address(settings)} went away: {cause.rstrip('.')}. "
            f"Of the chunks {published:,} were published, nothing is lost: `producer reconcile`, or the same command "
            "again, publishes the rest."
        ) from None
    return published
