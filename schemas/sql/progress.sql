-- name: counts_of_jobs(job_ids)
-- The ledgers of some jobs. Counts of finished chunks were frozen when they were finished; gleaner.ledger counts anew.
SELECT job_id, total, pending, ok, truncated, invalid, rejected, failed, cancelled, balanced
FROM gleaner.progress WHERE job_id = ANY(:job_ids);

-- name: reasons_of_job(job_id)
-- Rows of a job that are not ok, by outcome and reason code; those of finished chunks as they were frozen, those of
-- the others chunk by chunk (OFFSET 0): joined, Postgres would read all rows of the job.
SELECT outcome, reason_code, sum(rows)::bigint AS rows FROM (
    SELECT reason.outcome, reason.reason_code, reason.rows
    FROM gleaner.chunks AS chunk,
        jsonb_to_recordset(chunk.reasons) AS reason(outcome text, reason_code text, rows bigint)
    WHERE chunk.job_id = :job_id AND chunk.reasons IS NOT NULL
    UNION ALL
    SELECT open.outcome, open.reason_code, 1
    FROM gleaner.chunks AS chunk CROSS JOIN LATERAL (
        SELECT label.outcome, label.reason_code FROM gleaner.labels AS label
        WHERE label.job_id = chunk.job_id AND label.ordinal BETWEEN chunk.first_ordinal AND chunk.last_ordinal
          AND label.chunk_no = chunk.chunk_no AND label.outcome <> 'ok'
        OFFSET 0
    ) AS open
    WHERE chunk.job_id = :job_id AND chunk.counts IS NULL
) AS part
GROUP BY outcome, reason_code ORDER BY sum(rows) DESC, outcome, reason_code;
