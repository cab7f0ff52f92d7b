"""Whether anybody labels with a model: what workers have served from this database, and who serves it now."""

from difflib import get_close_matches

from schemas.database import Connection, queries
from schemas.settings import Settings

#: Likeness of names from which on one may be meant for the other: `gwen` is as like to `qwen3-8b`.
LIKENESS = 0.5


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
    near = get_close_matches(model, served, n=1, cutoff=LIKENESS)
    meant = f": did you mean {near[0]}?" if near else ""
    return f"{nobody}{meant}; served so far: {', '.join(served) or 'no model'}"
