-- name: quarantined_waits(model)$
-- Whether a quarantined chunk waits for a worker that has nothing else at its engine, and none is in work: of a model's
-- workers, one at a time is put at risk. (Two that ask at the same moment may both go on.)
SELECT EXISTS (
    SELECT FROM gleaner.jobs AS job JOIN gleaner.chunks AS chunk ON chunk.job_id = job.id
    WHERE job.model = :model AND job.state IN ('queued', 'running') AND chunk.state = 'quarantined' AND NOT chunk.alone
) AND NOT EXISTS (
    SELECT FROM gleaner.chunks AS chunk JOIN gleaner.jobs AS job ON job.id = chunk.job_id
    WHERE chunk.state = 'running' AND chunk.alone AND job.model = :model
);

-- name: claim_named(owner, lease_s, job_id, chunk_no, model)^
-- Take the lease of the chunk that a message names, if it waits and no job of a higher priority does. The new attempt is
-- the fencing token of everything that is written for the chunk from now on.
UPDATE gleaner.chunks AS chunk
SET state = 'running', attempt = attempt + 1, lease_owner = :owner,
    lease_until = now() + make_interval(secs => :lease_s)
FROM gleaner.jobs AS job
WHERE chunk.job_id = :job_id AND chunk.chunk_no = :chunk_no AND chunk.state = 'queued'
  AND job.id = chunk.job_id AND job.state IN ('queued', 'running') AND job.model = :model
  AND NOT EXISTS (
      SELECT FROM gleaner.jobs AS other JOIN gleaner.chunks AS waiting ON waiting.job_id = other.id
      WHERE other.model = :model AND other.state IN ('queued', 'running') AND other.priority > job.priority
        AND waiting.state = 'queued'
  )
RETURNING chunk.job_id, chunk.chunk_no, chunk.attempt, chunk.first_ordinal, chunk.last_ordinal, chunk.size,
    job.corpus_id, job.label_spec_id;

-- name: claim_waiting(owner, lease_s, model, by_age)^
-- Take the lease of the first chunk that waits: of the job with the highest priority, or of the oldest job.
-- Jobs are looked at in order, and only until one has a chunk.
WITH first AS MATERIALIZED (
    SELECT waiting.job_id, waiting.chunk_no, job.corpus_id, job.label_spec_id
    FROM (
        SELECT id, corpus_id, label_spec_id FROM gleaner.jobs
        WHERE model = :model AND state IN ('queued', 'running')
        ORDER BY CASE WHEN :by_age THEN 0 ELSE priority END DESC, id
    ) AS job
    CROSS JOIN LATERAL (
        SELECT chunk.job_id, chunk.chunk_no FROM gleaner.chunks AS chunk
        WHERE chunk.job_id = job.id AND chunk.state = 'queued'
        ORDER BY chunk.chunk_no LIMIT 1 FOR UPDATE SKIP LOCKED
    ) AS waiting
    LIMIT 1
)
UPDATE gleaner.chunks AS chunk
SET state = 'running', attempt = attempt + 1, lease_owner = :owner,
    lease_until = now() + make_interval(secs => :lease_s)
FROM first
WHERE chunk.job_id = first.job_id AND chunk.chunk_no = first.chunk_no
RETURNING chunk.job_id, chunk.chunk_no, chunk.attempt, chunk.first_ordinal, chunk.last_ordinal, chunk.size,
    first.corpus_id, first.label_spec_id;

-- name: claim_quarantined(owner, lease_s, model)^
-- Take the lease of a quarantined chunk. Only for a worker that has nothing else at its engine and lets nothing in:
-- what goes wrong now is this chunk's fault. One that went wrong so waits for the reconciler's verdict first.
WITH first AS MATERIALIZED (
    SELECT chunk.job_id, chunk.chunk_no, job.corpus_id, job.label_spec_id
    FROM gleaner.jobs AS job JOIN gleaner.chunks AS chunk ON chunk.job_id = job.id
    WHERE job.model = :model AND job.state IN ('queued', 'running') AND chunk.state = 'quarantined' AND NOT chunk.alone
      AND NOT EXISTS (
          SELECT FROM gleaner.chunks AS other JOIN gleaner.jobs AS its ON its.id = other.job_id
          WHERE other.state = 'running' AND other.alone AND its.model = :model
      )
    ORDER BY job.priority DESC, chunk.job_id, chunk.chunk_no
    LIMIT 1 FOR UPDATE OF chunk SKIP LOCKED
)
UPDATE gleaner.chunks AS chunk
SET state = 'running', alone = true, attempt = attempt + 1, lease_owner = :owner,
    lease_until = now() + make_interval(secs => :lease_s)
FROM first
WHERE chunk.job_id = first.job_id AND chunk.chunk_no = first.chunk_no
RETURNING chunk.job_id, chunk.chunk_no, chunk.attempt, chunk.first_ordinal, chunk.last_ordinal, chunk.size,
    first.corpus_id, first.label_spec_id;

-- name: chunk_standing(job_id, chunk_no)^
-- Why a chunk could not be claimed.
SELECT chunk.state AS chunk_state, job.state AS job_state, job.model, chunk.lease_owner,
    chunk.lease_until > now() AS leased
FROM gleaner.chunks AS chunk JOIN gleaner.jobs AS job ON job.id = chunk.job_id
WHERE chunk.job_id = :job_id AND chunk.chunk_no = :chunk_no;

-- name: start_job(job_id)!
-- The first claim of a job starts it.
UPDATE gleaner.jobs SET state = 'running', started_at = coalesce(started_at, now())
WHERE id = :job_id AND state = 'queued';

-- name: renew_leases(lease_s, held)
-- Push out the leases that this worker holds; those it no longer holds are missing from the answer.
-- Locked in order of the key, as every statement over several chunks locks them: none waits for each other.
WITH ours AS (
    SELECT chunk.job_id, chunk.chunk_no
    FROM gleaner.chunks AS chunk
    JOIN jsonb_to_recordset(:held) AS held(job_id bigint, chunk_no integer, attempt integer)
        ON chunk.job_id = held.job_id AND chunk.chunk_no = held.chunk_no
        AND chunk.attempt = held.attempt AND chunk.state = 'running'
    ORDER BY chunk.job_id, chunk.chunk_no
    FOR UPDATE OF chunk
)
UPDATE gleaner.chunks AS chunk
SET lease_until = now() + make_interval(secs => :lease_s)
FROM ours
WHERE chunk.job_id = ours.job_id AND chunk.chunk_no = ours.chunk_no
RETURNING chunk.job_id, chunk.chunk_no, chunk.attempt;

-- name: jobs_to_leave(job_ids)
-- Which of these jobs are being cancelled: their chunks are to be given back at once.
SELECT id FROM gleaner.jobs WHERE id = ANY(:job_ids) AND state IN ('cancelling', 'cancelled');

-- name: release_chunk(job_id, chunk_no, attempt, error, failed, max_failures)^
-- Give a chunk back unfinished: anyone may claim it at once. `failed` counts what went wrong with the chunk itself, or
-- with the engine while the chunk was there; after too much of it the chunk is quarantined.
UPDATE gleaner.chunks
SET state = CASE WHEN alone OR failures + :failed >= :max_failures THEN 'quarantined' ELSE 'queued' END,
    failures = failures + :failed, failures_alone = failures_alone + CASE WHEN alone THEN :failed ELSE 0 END,
    alone = alone AND :failed > 0, lease_owner = NULL, lease_until = NULL, last_error = :error
WHERE job_id = :job_id AND chunk_no = :chunk_no AND attempt = :attempt AND state = 'running'
RETURNING failures;

-- name: release_left(worker, owner, max_failures)
-- Free what a process of this worker's name left when it died: its successor need not wait for the leases to run out.
WITH ours AS (
    SELECT job_id, chunk_no FROM gleaner.chunks
    WHERE state = 'running' AND split_part(lease_owner, '/', 1) = :worker AND lease_owner <> :owner
    ORDER BY job_id, chunk_no FOR UPDATE
)
UPDATE gleaner.chunks AS chunk
SET state = CASE WHEN alone OR failures + 1 >= :max_failures THEN 'quarantined' ELSE 'queued' END,
    failures = failures + 1, failures_alone = failures_alone + alone::integer,
    last_error = lease_owner || ' ended without a word', lease_owner = NULL, lease_until = NULL
FROM ours
WHERE chunk.job_id = ours.job_id AND chunk.chunk_no = ours.chunk_no
RETURNING chunk.job_id, chunk.chunk_no, chunk.state, chunk.failures;

-- name: release_owned(owner, held, error, max_failures)!
-- Give back the chunks of a process but for those that it knows to hold: no failure of theirs. The others are claims
-- whose answer was lost.
WITH ours AS (
    SELECT chunk.job_id, chunk.chunk_no FROM gleaner.chunks AS chunk
    WHERE chunk.state = 'running' AND chunk.lease_owner = :owner AND NOT EXISTS (
        SELECT FROM jsonb_to_recordset(:held) AS held(job_id bigint, chunk_no integer, attempt integer)
        WHERE held.job_id = chunk.job_id AND held.chunk_no = chunk.chunk_no AND held.attempt = chunk.attempt
    )
    ORDER BY chunk.job_id, chunk.chunk_no FOR UPDATE OF chunk
)
UPDATE gleaner.chunks AS chunk
SET state = CASE WHEN alone OR failures >= :max_failures THEN 'quarantined' ELSE 'queued' END,
    alone = false, last_error = :error, lease_owner = NULL, lease_until = NULL
FROM ours
WHERE chunk.job_id = ours.job_id AND chunk.chunk_no = ours.chunk_no;

-- name: finish_chunk(job_id, chunk_no, attempt)^
-- Mark a chunk done under its fencing token, if every document of it has its row. May be repeated: when the answer to
-- the first was lost, the second finds the chunk done under the same token.
WITH fence AS (
    SELECT state, size, first_ordinal, last_ordinal FROM gleaner.chunks
    WHERE job_id = :job_id AND chunk_no = :chunk_no AND attempt = :attempt AND state IN ('running', 'done')
    FOR UPDATE
), there AS (
    SELECT count(*) AS rows FROM gleaner.labels AS label JOIN fence
        ON label.ordinal BETWEEN fence.first_ordinal AND fence.last_ordinal
    WHERE label.job_id = :job_id
), done AS (
    UPDATE gleaner.chunks AS chunk
    SET state = 'done', lease_owner = NULL, lease_until = NULL, finished_at = now(), last_error = NULL
    FROM fence, there
    WHERE chunk.job_id = :job_id AND chunk.chunk_no = :chunk_no
      AND fence.state = 'running' AND there.rows = fence.size
    RETURNING 1
)
SELECT EXISTS (SELECT FROM fence) AS held,
    EXISTS (SELECT FROM done) OR EXISTS (SELECT FROM fence WHERE state = 'done') AS finished;

-- name: lock_closable(job_id)$
-- Lock a job that has not ended and has no open chunk. The next statement of the transaction looks again: `producer
-- retry` may have opened chunks while this one waited for the lock.
SELECT id FROM gleaner.jobs AS job
WHERE id = :job_id AND state IN ('queued', 'running', 'paused', 'cancelling') AND NOT EXISTS (
    SELECT FROM gleaner.chunks AS chunk
    WHERE chunk.job_id = job.id AND chunk.state IN ('queued', 'running', 'quarantined')
)
FOR UPDATE;

-- name: close_locked(job_id)$
-- Close a job without an open chunk and freeze its counts; its new state, if this closed it. After lock_closable.
UPDATE gleaner.jobs AS job
SET state = CASE WHEN EXISTS (
        SELECT FROM gleaner.chunks AS chunk WHERE chunk.job_id = job.id AND chunk.state = 'cancelled'
    ) THEN 'cancelled' ELSE 'done' END,
    state_reason = NULL,
    finished_at = now(),
    final_counts = (
        SELECT jsonb_build_object('ok', ledger.ok, 'truncated', ledger.truncated, 'invalid', ledger.invalid,
            'rejected', ledger.rejected, 'failed', ledger.failed, 'cancelled', ledger.cancelled)
        FROM gleaner.ledger AS ledger WHERE ledger.job_id = job.id
    )
WHERE job.id = :job_id AND job.state IN ('queued', 'running', 'paused', 'cancelling')
  AND NOT EXISTS (
      SELECT FROM gleaner.chunks AS chunk
      WHERE chunk.job_id = job.id AND chunk.state IN ('queued', 'running', 'quarantined')
  )
RETURNING job.state;
