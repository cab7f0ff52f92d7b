-- name: try_reconcile_lock()$
-- Whether this connection is now, or already was, the reconciler's. Held until the connection ends.
SELECT pg_try_advisory_lock(hashtextextended('gleaner.reconciler', 0));

-- name: try_lock_publishing(model)$
-- Whether nobody else publishes chunks of this model; they are then ours to publish.
SELECT pg_try_advisory_lock(hashtextextended('gleaner.publish.' || :model, 0));

-- name: unlock_publishing(model)!
-- Let others publish chunks of this model.
SELECT pg_advisory_unlock(hashtextextended('gleaner.publish.' || :model, 0));

-- name: count_waiting(model)$
-- Chunks of a model that a worker could claim now.
SELECT count(*) FROM gleaner.jobs AS job JOIN gleaner.chunks AS chunk ON chunk.job_id = job.id
WHERE job.model = :model AND job.state IN ('queued', 'running') AND chunk.state IN ('queued', 'quarantined');

-- name: waiting_models()
-- Models with chunks that wait, how many, and how many chunks of theirs workers hold.
SELECT job.model, count(*) FILTER (WHERE chunk.state <> 'running') AS waiting,
    count(*) FILTER (WHERE chunk.state = 'running') AS held
FROM gleaner.jobs AS job JOIN gleaner.chunks AS chunk ON chunk.job_id = job.id
WHERE job.state IN ('queued', 'running') AND chunk.state IN ('queued', 'running', 'quarantined')
GROUP BY job.model ORDER BY job.model;

-- name: chunks_to_publish(model, batch)
-- Chunks of a model that wait, those without a message first, then those with the oldest.
SELECT chunk.job_id, chunk.chunk_no, chunk.first_ordinal, chunk.last_ordinal
FROM gleaner.jobs AS job JOIN gleaner.chunks AS chunk ON chunk.job_id = job.id
WHERE job.model = :model AND job.state IN ('queued', 'running') AND chunk.state IN ('queued', 'quarantined')
ORDER BY chunk.published_at NULLS FIRST, job.priority DESC, chunk.job_id, chunk.chunk_no LIMIT :batch;

-- name: mark_published(chunks)!
-- Note that the broker has a message for each of these chunks. Locked in order of the key, as leases are.
WITH these AS (
    SELECT chunk.job_id, chunk.chunk_no
    FROM gleaner.chunks AS chunk
    JOIN jsonb_to_recordset(:chunks) AS given(job_id bigint, chunk_no integer)
        ON chunk.job_id = given.job_id AND chunk.chunk_no = given.chunk_no
    ORDER BY chunk.job_id, chunk.chunk_no
    FOR UPDATE OF chunk
)
UPDATE gleaner.chunks AS chunk SET published_at = now()
FROM these WHERE chunk.job_id = these.job_id AND chunk.chunk_no = these.chunk_no;

-- name: take_over_expired(max_failures, batch)
-- Free chunks whose lease ran out: a failure of each, after too many of which it is quarantined.
WITH expired AS MATERIALIZED (
    SELECT job_id, chunk_no, lease_owner FROM gleaner.chunks
    WHERE state = 'running' AND lease_until < now()
    ORDER BY job_id, chunk_no LIMIT :batch FOR UPDATE SKIP LOCKED
)
UPDATE gleaner.chunks AS chunk
SET state = CASE WHEN alone OR failures + 1 >= :max_failures THEN 'quarantined' ELSE 'queued' END,
    failures = failures + 1, failures_alone = failures_alone + alone::integer,
    last_error = 'the lease of ' || expired.lease_owner || ' ran out', lease_owner = NULL, lease_until = NULL
FROM expired
WHERE chunk.job_id = expired.job_id AND chunk.chunk_no = expired.chunk_no
RETURNING chunk.job_id, chunk.chunk_no, chunk.state, chunk.failures, expired.lease_owner;

-- name: condemned_chunks(batch)
-- Quarantined chunks that went wrong even with nothing else at the engine.
SELECT chunk.job_id, chunk.chunk_no, chunk.failures, chunk.failures_alone, chunk.last_error
FROM gleaner.jobs AS job JOIN gleaner.chunks AS chunk ON chunk.job_id = job.id
WHERE job.state IN ('queued', 'running') AND chunk.state = 'quarantined' AND chunk.alone
ORDER BY chunk.job_id, chunk.chunk_no LIMIT :batch;

-- name: open_ordinals(job_id, chunk_no)
-- The documents of a quarantined chunk that have no row, in order. Locks the chunk until the transaction ends.
WITH chunk AS (
    SELECT job_id, first_ordinal, last_ordinal FROM gleaner.chunks
    WHERE job_id = :job_id AND chunk_no = :chunk_no AND state = 'quarantined' FOR UPDATE
)
SELECT document.ordinal
FROM chunk JOIN gleaner.jobs AS job ON job.id = chunk.job_id
JOIN gleaner.documents AS document ON document.corpus_id = job.corpus_id
    AND document.ordinal BETWEEN chunk.first_ordinal AND chunk.last_ordinal
WHERE NOT EXISTS (
    SELECT FROM gleaner.labels AS label WHERE label.job_id = chunk.job_id AND label.ordinal = document.ordinal
)
ORDER BY document.ordinal;

-- name: halve_chunk(job_id, chunk_no, middle)$
-- Cut a quarantined chunk in two before the document `middle`; both stay quarantined, and each is tried alone. Rows go
-- with their half. Returns the number of the second. Under the lock of open_ordinals.
WITH whole AS (
    SELECT chunk.last_ordinal, job.corpus_id FROM gleaner.chunks AS chunk JOIN gleaner.jobs AS job ON job.id = chunk.job_id
    WHERE chunk.job_id = :job_id AND chunk.chunk_no = :chunk_no
), second AS (
    INSERT INTO gleaner.chunks (job_id, chunk_no, first_ordinal, last_ordinal, size, state, attempt, failures,
        last_error)
    SELECT :job_id, (SELECT max(chunk_no) + 1 FROM gleaner.chunks WHERE job_id = :job_id), :middle, whole.last_ordinal,
        (SELECT count(*) FROM gleaner.documents AS document WHERE document.corpus_id = whole.corpus_id
            AND document.ordinal BETWEEN :middle AND whole.last_ordinal),
        'quarantined', 0, 0, 'half of chunk ' || :chunk_no
    FROM whole
    RETURNING chunk_no, size
), moved AS (
    UPDATE gleaner.labels AS label SET chunk_no = second.chunk_no
    FROM second WHERE label.job_id = :job_id AND label.ordinal >= :middle AND label.chunk_no = :chunk_no
        AND label.ordinal <= (SELECT last_ordinal FROM whole)
)
UPDATE gleaner.chunks AS chunk
SET last_ordinal = :middle - 1, size = chunk.size - second.size, attempt = chunk.attempt + 1,
    alone = false, failures_alone = 0
FROM second WHERE chunk.job_id = :job_id AND chunk.chunk_no = :chunk_no
RETURNING second.chunk_no;

-- name: try_alone_again(job_id, chunk_no)!
-- Let a quarantined chunk have the engine for itself once more.
UPDATE gleaner.chunks SET alone = false WHERE job_id = :job_id AND chunk_no = :chunk_no AND state = 'quarantined';

-- name: close_chunk(job_id, chunk_no)!
-- Mark a quarantined chunk done whose documents all have their rows.
UPDATE gleaner.chunks AS chunk
SET state = 'done', attempt = chunk.attempt + 1, finished_at = now()
WHERE chunk.job_id = :job_id AND chunk.chunk_no = :chunk_no AND chunk.state = 'quarantined';

-- name: write_poison(job_id, chunk_no, ordinal, reason, worker)!
-- The row of a document that nobody could work on.
INSERT INTO gleaner.labels (job_id, ordinal, chunk_no, outcome, reason_code, reason, dropped_tokens, parts, tries,
    attempt, worker)
SELECT :job_id, :ordinal, :chunk_no, 'failed', 'poison', :reason, 0, 1, 0, chunk.attempt, :worker
FROM gleaner.chunks AS chunk WHERE chunk.job_id = :job_id AND chunk.chunk_no = :chunk_no
ON CONFLICT (job_id, ordinal) DO NOTHING;

-- name: count_poison(job_id)$
-- Documents of a job that turned out to be poison.
SELECT count(*) FROM gleaner.labels WHERE job_id = :job_id AND reason_code = 'poison';

-- name: jobs_to_move()
-- Jobs that are being cancelled, and those without an open chunk that nobody has closed.
SELECT job.id, job.state FROM gleaner.jobs AS job
WHERE job.state IN ('queued', 'running', 'paused', 'cancelling') AND (job.state = 'cancelling' OR NOT EXISTS (
    SELECT FROM gleaner.chunks AS chunk
    WHERE chunk.job_id = job.id AND chunk.state IN ('queued', 'running', 'quarantined')
)) ORDER BY job.id;

-- name: jobs_in_work()
-- Jobs that have not ended or ended lately, and how far they are by whole chunks, which costs little to count.
SELECT job.id, job.state, job.model, job.total, corpus.name AS corpus, spec.name AS label_spec, spec.version,
    extract(epoch FROM coalesce(job.finished_at, now()) - job.started_at)::double precision AS running_s,
    open.documents AS open_documents, open.held
FROM gleaner.jobs AS job
JOIN gleaner.corpora AS corpus ON corpus.id = job.corpus_id
JOIN gleaner.label_specs AS spec ON spec.id = job.label_spec_id
CROSS JOIN LATERAL (
    SELECT coalesce(sum(chunk.size), 0)::bigint AS documents, count(*) FILTER (WHERE chunk.state = 'running') AS held
    FROM gleaner.chunks AS chunk
    WHERE chunk.job_id = job.id AND chunk.state IN ('queued', 'running', 'quarantined')
) AS open
WHERE job.state IN ('queued', 'running', 'paused', 'cancelling') OR job.finished_at > now() - interval '1 minute'
ORDER BY job.id;
