-- name: lock_label_spec_name(name)!
-- Wait until nobody else gives a version to a label spec of this name; held until the transaction ends.
SELECT pg_advisory_xact_lock(hashtextextended('gleaner.label_specs.' || :name, 0));

-- name: label_spec_by_digest(digest)^
-- The frozen label spec with this digest, if any.
SELECT id, version FROM gleaner.label_specs WHERE digest = :digest;

-- name: insert_label_spec(name, digest, json_schema, system_prompt, template, sampling, over_long, class_path)^
-- Freeze a label spec under the next version of its name. Under lock_label_spec_name.
INSERT INTO gleaner.label_specs (name, version, digest, json_schema, system_prompt, template, sampling, over_long,
    class_path)
SELECT :name, coalesce(max(version), 0) + 1, :digest, :json_schema, :system_prompt, :template, :sampling, :over_long,
    :class_path
FROM gleaner.label_specs WHERE name = :name
RETURNING id, version;

-- name: view_exists(name)$
-- Whether the analysts' schema has this view.
SELECT EXISTS (SELECT FROM pg_views WHERE schemaname = 'labels' AND viewname = :name);

-- name: list_label_specs()
-- Every frozen label spec, with how many jobs use it.
SELECT spec.id, spec.name AS label_spec, spec.version, spec.digest, spec.created_at,
    (SELECT count(*) FROM gleaner.jobs AS job WHERE job.label_spec_id = spec.id) AS jobs
FROM gleaner.label_specs AS spec ORDER BY spec.name, spec.version;

-- name: label_spec_by_name(name, version)^
-- One version of a label spec; without a version the newest.
SELECT name, version, digest, json_schema, system_prompt, template FROM gleaner.label_specs
WHERE name = :name AND (:version::integer IS NULL OR version = :version) ORDER BY version DESC LIMIT 1;

-- name: insert_job(corpus_id, label_spec_id, model, priority, submitted_by)$
-- Create the one job of this corpus, label spec and model. No row: it exists.
INSERT INTO gleaner.jobs (corpus_id, label_spec_id, model, state, priority, total, submitted_by)
SELECT id, :label_spec_id, :model, 'queued', :priority, document_count, :submitted_by
FROM gleaner.corpora WHERE id = :corpus_id
ON CONFLICT (corpus_id, label_spec_id, model) DO NOTHING
RETURNING id;

-- name: job_of(corpus_id, label_spec_id, model)$
-- The job of this corpus, label spec and model.
SELECT id FROM gleaner.jobs
WHERE corpus_id = :corpus_id AND label_spec_id = :label_spec_id AND model = :model;

-- name: cut_chunks(job_id, corpus_id, chunk_size)!
-- Cut a corpus into chunks of consecutive documents. In the transaction that creates the job.
INSERT INTO gleaner.chunks (job_id, chunk_no, first_ordinal, last_ordinal, size, state, attempt, failures)
SELECT :job_id, (counted.n / :chunk_size)::integer, min(counted.ordinal), max(counted.ordinal), count(*), 'queued', 0, 0
FROM (
    SELECT ordinal, row_number() OVER (ORDER BY ordinal) - 1 AS n
    FROM gleaner.documents WHERE corpus_id = :corpus_id
) AS counted
GROUP BY counted.n / :chunk_size;

-- name: job_by_id(job_id)^
-- A job with its corpus and label spec in words, and how long its newest run has taken.
SELECT job.id, job.state, job.state_reason, job.model, job.total, job.priority, job.submitted_by, job.final_counts,
    job.created_at, job.started_at, job.finished_at,
    extract(epoch FROM coalesce(job.finished_at, now()) - job.started_at)::double precision AS running_s,
    job.corpus_id, corpus.name AS corpus, corpus.uri, corpus.document_count, corpus.rejected_count,
    spec.name AS label_spec, spec.version
FROM gleaner.jobs AS job
JOIN gleaner.corpora AS corpus ON corpus.id = job.corpus_id
JOIN gleaner.label_specs AS spec ON spec.id = job.label_spec_id
WHERE job.id = :job_id;

-- name: list_jobs(live_only, previews, batch)
-- Jobs, newest first; only those that are not finished if so asked, and those of `producer preview --run`, whose corpus
-- is a file of that name in a temporary folder.
SELECT job.id, job.state, job.state_reason, job.model, job.total, job.priority, job.final_counts,
    job.created_at, job.started_at, job.finished_at, corpus.name AS corpus, spec.name AS label_spec, spec.version
FROM gleaner.jobs AS job
JOIN gleaner.corpora AS corpus ON corpus.id = job.corpus_id
JOIN gleaner.label_specs AS spec ON spec.id = job.label_spec_id
WHERE (NOT :live_only OR job.state NOT IN ('done', 'cancelled'))
  AND (:previews OR corpus.name <> 'preview' OR corpus.uri !~ '/gleaner-[^/]+/preview[.]jsonl$')
ORDER BY job.id DESC LIMIT :batch;

-- name: job_ledger(job_id)^
-- The ledger of a job, every row counted: total = pending + rows by outcome, or balanced is false.
SELECT total, pending, ok, truncated, invalid, rejected, failed, cancelled, balanced
FROM gleaner.ledger WHERE job_id = :job_id;

-- name: job_progress(job_id)^
-- What a watcher needs: the state of a job and its ledger, read at one moment.
SELECT job.state, ledger.total, ledger.pending, ledger.ok, ledger.truncated, ledger.invalid, ledger.rejected,
    ledger.failed, ledger.cancelled, ledger.balanced, job.model, job.state_reason,
    extract(epoch FROM coalesce(job.finished_at, now()) - job.started_at)::double precision AS running_s
FROM gleaner.jobs AS job JOIN gleaner.progress AS ledger ON ledger.job_id = job.id
WHERE job.id = :job_id;

-- name: labelled_before(job_id)$
-- Rows that the engine had part in, of chunks that were finished before the job was last started: since then it was
-- tried again. Rows of this run are the others.
SELECT coalesce(sum(
    (chunk.counts ->> 'ok')::bigint + (chunk.counts ->> 'truncated')::bigint + (chunk.counts ->> 'invalid')::bigint
    + (chunk.counts ->> 'failed')::bigint
), 0)::bigint
FROM gleaner.jobs AS job JOIN gleaner.chunks AS chunk ON chunk.job_id = job.id
WHERE job.id = :job_id AND chunk.finished_at < job.started_at;

-- name: count_history(job_id)$
-- Rows of a job that were taken out to be tried again.
SELECT count(*) FROM gleaner.label_history WHERE job_id = :job_id;

-- name: chunks_by_state(job_id)
-- Chunks of a job by state; leased are those that a worker holds now.
SELECT state, count(*) AS chunks, count(*) FILTER (WHERE lease_until > now()) AS leased
FROM gleaner.chunks WHERE job_id = :job_id GROUP BY state ORDER BY state;

-- name: chunk_errors(job_id, batch)
-- Why chunks of a job were given back, the latest attempts first.
SELECT chunk_no, state, attempt, last_error FROM gleaner.chunks
WHERE job_id = :job_id AND last_error IS NOT NULL ORDER BY attempt DESC, chunk_no LIMIT :batch;

-- name: is_migrated()$
-- Whether the database was ever migrated.
SELECT to_regclass('gleaner.alembic_version') IS NOT NULL;

-- name: database_revision()$
-- The revision that the last migration left. Only where is_migrated.
SELECT version_num FROM gleaner.alembic_version;

-- name: served_models()
-- The models that workers have served from this database, the last one first.
SELECT info ->> 'model' AS model FROM gleaner.engines GROUP BY 1 ORDER BY max(registered_at) DESC;
