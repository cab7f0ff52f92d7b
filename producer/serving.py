"""Whether anybody labels with a model: what workers have served from this database, and who serves it now."""

from celery import Celery
from kombu.exceptions import KombuError, OperationalError
from redis.exceptions import RedisError

from schemas.database import Connection, queries
from schemas.queue import queue_name

#: Seconds to wait for workers to say which queues they take from. They answer in milliseconds.
INSPECT_S = 1.0


def unserved(connection: Connection, broker: Celery, model: str) -> str | None:
    """A warning when no worker has served this model and none does now: likely a typing error. Else None.

    Workers are asked only about a model that none has served yet: asking takes a second.
    """
    served = [row["model"] for row in queries.served_models(connection)]
    if model in served:
        return None
    consumed = _consumed_queues(broker)
    if consumed is not None and queue_name(model) in consumed:
        return None
    nobody = f"no worker has served {model!r}" if consumed is None else f"no worker serves {model!r} now"
    return f"{nobody}; served so far: {', '.join(served) or 'no model'}"


def served_now(broker: Celery, model: str) -> bool:
    """Whether a live worker takes from the model's queue; False too when the broker does not say."""
    return queue_name(model) in (_consumed_queues(broker) or set())


def _consumed_queues(broker: Celery) -> set[str] | None:
    """The queues that live workers take from; None when the broker does not say."""
    try:
        answers = broker.control.inspect(timeout=INSPECT_S).active_queues() or {}
    except (KombuError, OperationalError, RedisError, OSError):
        return None
    return {queue["name"] for queues in answers.values() for queue in queues}
