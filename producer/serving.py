"""Whether anybody labels with a model: what workers have served from this database, and who serves it now."""

from schemas.database import Connection, queries
from schemas.settings import Settings


def unserved(connection: Connection, settings: Settings, model: str) -> str | None:
    """A warning when no worker has served this model and none does now: likely a typing error. Else None.

    Workers are asked only about a model that none has served yet: asking takes a second.
    """
    served = [row["model"] for row in queries.served_models(connection)]
    if model in served:
        return None
    # Celery takes longer to load than `producer status` takes without it.
    from schemas.queue import consumed_queues, create_app, queue_name  # noqa: PLC0415

    with create_app(settings) as broker:
        consumed = consumed_queues(broker)
    if consumed is not None and queue_name(model) in consumed:
        return None
    nobody = f"no worker has served {model!r}" if consumed is None else f"no worker serves {model!r} now"
    return f"{nobody}; served so far: {', '.join(served) or 'no model'}"
