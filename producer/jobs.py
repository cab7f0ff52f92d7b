"""Label specs frozen, jobs created, and both found again when the same is asked for twice."""

from dataclasses import dataclass

from psycopg.types.json import Json, Jsonb

from producer.chunking import cut_chunks
from producer.loader import Corpus
from producer.submitter import submitter
from schemas.database import Connection, queries
from schemas.errors import UsageError
from schemas.label_spec import LabelSpec
from schemas.settings import Settings
from schemas.views import create_views, view_name


@dataclass(frozen=True)
class FrozenSpec:
    """A label spec as stored. ``created`` is False when it was there already."""

    id: int
    name: str
    version: int
    created: bool


@dataclass(frozen=True)
class Job:
    """A job with its chunks cut. ``created`` is False when it was there already."""

    id: int
    created: bool


def freeze_label_spec(connection: Connection, spec: LabelSpec) -> FrozenSpec:
    """Store a label spec under the next version of its name, with its views; or find it by its digest.

    :raises GleanerError: when an analyst's own view keeps the newest version's from being replaced.
    """
    with connection.transaction():
        queries.lock_label_spec_name(connection, name=spec.name)
        found = queries.label_spec_by_digest(connection, digest=spec.digest)
        row = found or queries.insert_label_spec(
            connection,
            name=spec.name,
            digest=spec.digest,
            json_schema=Json(spec.json_schema),
            system_prompt=spec.system_prompt,
            template=spec.template,
            sampling=Jsonb(spec.sampling.model_dump(mode="json")),
            over_long=spec.over_long,
            class_path=spec.class_path,
        )
        # Views that are there are left alone: replacing one waits for every query that reads it.
        if found is None or not queries.view_exists(connection, name=view_name(spec, row["version"])):
            create_views(connection, spec, row["id"], row["version"])
    return FrozenSpec(row["id"], spec.name, row["version"], created=found is None)


def job_model(connection: Connection, settings: Settings) -> str:
    """The model of a new job: the one that is set, else the only one that workers of this database have served.

    :raises UsageError: when none is set and workers have served several.
    """
    if "model" in settings.model_fields_set:
        return settings.model
    served = [row["model"] for row in queries.served_models(connection)]
    if len(served) > 1:
        raise UsageError(f"workers serve several models: name one with --model ({', '.join(served)})")
    return served[0] if served else settings.model


def create_job(
    connection: Connection, corpus: Corpus, spec: FrozenSpec, model: str, chunk_size: int, priority: int = 0
) -> Job:
    """Create the job of this corpus, label spec and model with its chunks, in one transaction; or find it.

    :param chunk_size: documents a chunk; a job that exists keeps the chunks it was cut into, and its priority.
    """
    key = {"corpus_id": corpus.id, "label_spec_id": spec.id, "model": model}
    with connection.transaction():
        # Cutting reads the whole corpus: a large one takes longer than a statement may.
        connection.execute("SELECT set_config('statement_timeout', '0', true)")
        # Asked first, since an insert that conflicts uses up a job id.
        found = queries.job_of(connection, **key)
        job_id = found or queries.insert_job(connection, **key, priority=priority, submitted_by=submitter())
        if found is None and job_id is not None:
            cut_chunks(connection, job_id, corpus.id, chunk_size)
            return Job(job_id, created=True)
    # Another producer's insert may have come between the two: it has committed by now.
    return Job(job_id or queries.job_of(connection, **key), created=False)
