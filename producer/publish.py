"""One message for each chunk that is neither finished nor leased. Twice does no harm: leases decide who works."""

from celery import Celery
from kombu.exceptions import KombuError, OperationalError
from redis.exceptions import RedisError

from producer.progress import Progress
from schemas.database import Connection, queries
from schemas.errors import BrokerUnavailable
from schemas.queue import PUBLISH_BATCH, ChunkMessage, broker_address, publish
from schemas.settings import Settings


def publish_open_chunks(
    connection: Connection, app: Celery, settings: Settings, job_id: int, model: str, progress: Progress
) -> int:
    """Publish what is left of a job, in batches. Returns the number of messages.

    :raises BrokerUnavailable: when the broker goes away; what was published stays, the rest can follow.
    """
    total = queries.count_open_chunks(connection, job_id=job_id)
    published, after = 0, -1
    while batch := list(queries.open_chunks(connection, job_id=job_id, after=after, batch=PUBLISH_BATCH)):
        try:
            publish(app, model, [ChunkMessage(job_id=job_id, **chunk) for chunk in batch])
        except (KombuError, OperationalError, RedisError, OSError) as error:
            cause = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise BrokerUnavailable(
                f"the broker at {broker_address(settings)} went away: {cause.rstrip('.')}. Job {job_id} is loaded and "
                f"{published} of {total} chunks are published: run the same command again to publish the rest."
            ) from None
        after = batch[-1]["chunk_no"]
        queries.mark_published(connection, job_id=job_id, chunk_nos=[chunk["chunk_no"] for chunk in batch])
        published += len(batch)
        progress("publishing", published, max(published, total))
    return published
