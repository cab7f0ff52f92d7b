-- name: claim_chunk(owner, lease_s, job_id, chunk_no, model)^
-- Take the lease of a chunk that nobody else holds, of a job of this worker's model. The new attempt is the
-- fencing token of everything that is written for the chunk from now on. No row: not ours to work on.
-- A lease of our own is one that we could not give back, or that a process of our name left when it died.
UPDATE gleaner.chunks AS chunk
SET state = 'running', attempt = attempt + 1, lease_owner = :owner,
    lease_until = now() + make_interval(secs => :lease_s)
FROM gleaner.jobs AS job
WHERE chunk.job_id = :job_id AND chunk.chunk_no = :chunk_no
  AND chunk.state IN ('queued', 'running')
  AND (chunk.lease_until IS NULL OR chunk.lease_until < now() OR chunk.lease_owner = :owner)
  AND job.id = chunk.job_id AND job.state IN ('queued', 'running') AND job.model = :model
RETURNING chunk.job_id, chunk.chunk_no, chunk.attempt, chunk.first_ordinal, chunk.last_ordinal, chunk.size,
    job.corpus_id, job.label_spec_id;

-- name: chunk_standing(job_id, chunk_no)^
-- Why a chunk could not be claimed.
SELECT chunk.state AS chunk_state, job.state AS job_state, job.model, chunk.lease_owner,
    chunk.lease_until > now() AS leased
FROM gleaner.chunks AS chunk JOIN gleaner.jobs AS job ON job.id = chunk.job_id
WHERE chunk.job_id = :job_id AND chunk.chunk_no = :chunk_no;

-- name: start_job(job_id)!
-- The first claim of a job starts it.
UPDATE gleaner.jobs SET state = 'running', started_at = now()
WHERE id = :job_id AND state = 'queued';

-- name: renew_leases(lease_s, held)
-- Push out the leases that this worker holds; those it no longer holds are missing from the answer.
-- Locked in order of the key, as publishing locks them: two statements over several chunks never wait for each other.
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

-- name: release_chunk(job_id, chunk_no, attempt, error, failed)^
-- Give a chunk back unfinished: anyone may claim it at once. `failed` counts what went wrong with the chunk itself.
UPDATE gleaner.chunks
SET state = 'queued', lease_owner = NULL, lease_until = NULL, last_error = :error, failures = failures + :failed
WHERE job_id = :job_id AND chunk_no = :chunk_no AND attempt = :attempt AND state = 'running'
RETURNING failures;

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

-- name: finish_job(job_id)!
-- Close a job whose chunks are all done and freeze its counts. Runs in a transaction of its own, after the one
-- that finished a chunk: of two workers that finish the last two chunks at once, the later one sees both done.
UPDATE gleaner.jobs AS job
SET state = 'done', finished_at = now(),
    final_counts = (
        SELECT jsonb_build_object('ok', ledger.ok, 'truncated', ledger.truncated, 'invalid', ledger.invalid,
            'rejected', ledger.rejected, 'failed', ledger.failed, 'cancelled', ledger.cancelled)
        FROM gleaner.ledger AS ledger WHERE ledger.job_id = job.id
    )
WHERE job.id = :job_id AND job.state IN ('queued', 'running')
  AND NOT EXISTS (SELECT FROM gleaner.chunks AS chunk WHERE chunk.job_id = job.id AND chunk.state <> 'done');
