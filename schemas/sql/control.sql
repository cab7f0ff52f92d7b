-- name: job_control(job_id)^
-- What decides whether a job can be stopped, continued or tried again.
SELECT id, state, state_reason, priority, model, corpus_id FROM gleaner.jobs WHERE id = :job_id;

-- name: pause_job(job_id, reason)!
-- No chunk of the job is claimed from now on; those in work are finished.
UPDATE gleaner.jobs SET state = 'paused', state_reason = :reason WHERE id = :job_id AND state IN ('queued', 'running');

-- name: resume_job(job_id)!
-- Let a paused job go on.
UPDATE gleaner.jobs
SET state = CASE WHEN started_at IS NULL THEN 'queued' ELSE 'running' END, state_reason = NULL
WHERE id = :job_id AND state = 'paused';

-- name: set_priority(job_id, priority)!
-- The priority of a job that has not ended.
UPDATE gleaner.jobs SET priority = :priority WHERE id = :job_id AND state NOT IN ('done', 'cancelled');

-- name: request_cancel(job_id)!
-- From now on no chunk of the job is claimed, and workers give back those that they hold.
UPDATE gleaner.jobs SET state = 'cancelling' WHERE id = :job_id AND state IN ('queued', 'running', 'paused');

-- name: cancel_chunks(job_id, worker, reason, batch)$
-- Cancel chunks of a job that is being cancelled and that no worker holds: each document without a row gets one. The
-- new attempt shuts out a worker that lost its lease. Returns the number of chunks.
-- Documents are read chunk by chunk, which OFFSET holds Postgres to: left to itself it compares every document of the
-- corpus with each of the chunks.
WITH these AS MATERIALIZED (
    SELECT chunk.job_id, chunk.chunk_no, chunk.first_ordinal, chunk.last_ordinal, chunk.attempt, job.corpus_id
    FROM gleaner.chunks AS chunk JOIN gleaner.jobs AS job ON job.id = chunk.job_id
    WHERE chunk.job_id = :job_id AND job.state = 'cancelling' AND chunk.state IN ('queued', 'running', 'quarantined')
      AND (chunk.state <> 'running' OR chunk.lease_until < now())
    ORDER BY chunk.chunk_no LIMIT :batch FOR UPDATE OF chunk
), written AS (
    INSERT INTO gleaner.labels (job_id, ordinal, chunk_no, outcome, reason_code, reason, dropped_tokens, parts, tries,
        attempt, worker)
    SELECT these.job_id, document.ordinal, these.chunk_no, 'cancelled', 'cancelled', :reason, 0, 1, 0,
        these.attempt + 1, :worker
    FROM these CROSS JOIN LATERAL (
        SELECT document.ordinal FROM gleaner.documents AS document
        WHERE document.corpus_id = these.corpus_id
          AND document.ordinal BETWEEN these.first_ordinal AND these.last_ordinal
          AND NOT EXISTS (
              SELECT FROM gleaner.labels AS label
              WHERE label.job_id = these.job_id AND label.ordinal = document.ordinal
                AND label.ordinal BETWEEN these.first_ordinal AND these.last_ordinal
          )
        OFFSET 0
    ) AS document
    ORDER BY document.ordinal
    ON CONFLICT (job_id, ordinal) DO NOTHING
), cancelled AS (
    UPDATE gleaner.chunks AS chunk
    SET state = 'cancelled', attempt = chunk.attempt + 1, lease_owner = NULL, lease_until = NULL, finished_at = now()
    FROM these WHERE chunk.job_id = these.job_id AND chunk.chunk_no = these.chunk_no
    RETURNING 1
)
SELECT count(*) FROM cancelled;

-- name: chunks_held(job_id)^
-- How many chunks of a job workers hold, with how many documents at most, when the last of these leases runs out unless it is renewed, and the seconds
-- until then by the server's clock.
SELECT count(*) AS chunks, coalesce(sum(size), 0)::bigint AS documents, max(lease_until) AS until,
    greatest(0, extract(epoch FROM max(lease_until) - now()))::double precision AS lease_s
FROM gleaner.chunks WHERE job_id = :job_id AND state = 'running';

-- name: largest_open_chunk(job_id)$
-- Documents of the largest chunk of a job that is not finished; 0 without one.
SELECT coalesce(max(size), 0) FROM gleaner.chunks
WHERE job_id = :job_id AND state IN ('queued', 'running', 'quarantined');

-- name: count_outcomes(job_id, outcomes)$
-- Rows of a job with one of these outcomes.
SELECT count(*) FROM gleaner.labels WHERE job_id = :job_id AND outcome = ANY(:outcomes);

-- name: reopen_job(job_id)$
-- Open a job that has ended, to try rows of it again: a run of its own, whose first claim starts its clock. No row: it
-- has not ended. In one transaction with the next two.
UPDATE gleaner.jobs SET state = 'queued', started_at = NULL, finished_at = NULL, final_counts = NULL
WHERE id = :job_id AND state IN ('done', 'cancelled')
RETURNING corpus_id;

-- name: recut_chunks(job_id, corpus_id, outcomes, chunk_size, span)$
-- Take the rows with these outcomes out, keep them as history, and cut chunks for their documents: each holds up to
-- chunk_size of them, and lies within `span` ordinals, which bounds what a chunk's statements read. Returns the number
-- of rows.
WITH taken AS (
    DELETE FROM gleaner.labels WHERE job_id = :job_id AND outcome = ANY(:outcomes) RETURNING *
), kept AS (
    INSERT INTO gleaner.label_history (job_id, ordinal, row)
    SELECT taken.job_id, taken.ordinal, to_jsonb(taken) FROM taken
), cut AS (
    SELECT min(numbered.ordinal) AS first, max(numbered.ordinal) AS last,
        row_number() OVER (ORDER BY min(numbered.ordinal)) - 1 AS part
    FROM (
        SELECT ordinal, ordinal / :span AS stretch,
            row_number() OVER (PARTITION BY ordinal / :span ORDER BY ordinal) - 1 AS n
        FROM taken
    ) AS numbered
    GROUP BY numbered.stretch, numbered.n / :chunk_size
), chunks AS (
    INSERT INTO gleaner.chunks (job_id, chunk_no, first_ordinal, last_ordinal, size, state, attempt, failures)
    SELECT :job_id, (SELECT max(chunk_no) + 1 FROM gleaner.chunks WHERE job_id = :job_id) + cut.part, cut.first,
        cut.last, (
            SELECT count(*) FROM gleaner.documents AS document
            WHERE document.corpus_id = :corpus_id AND document.ordinal BETWEEN cut.first AND cut.last
        ), 'queued', 0, 0
    FROM cut
)
SELECT count(*) FROM taken;

-- name: keep_chunks(job_id)!
-- After the last row that was cancelled is tried again, no chunk counts as cancelled any more, and neither will the job.
UPDATE gleaner.chunks SET state = 'done'
WHERE job_id = :job_id AND state = 'cancelled'
  AND NOT EXISTS (SELECT FROM gleaner.labels WHERE job_id = :job_id AND outcome = 'cancelled');
