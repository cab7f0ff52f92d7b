-- name: label_spec_by_id(label_spec_id)^
-- The frozen label spec of a job.
SELECT name, version, digest, json_schema, system_prompt, template, sampling, over_long, class_path
FROM gleaner.label_specs WHERE id = :label_spec_id;

-- name: open_documents(corpus_id, first_ordinal, last_ordinal, job_id, with_meta, max_bytes)
-- Documents of a chunk that have no row yet, in order, from the first on until they hold so many bytes, and how many
-- are open in all; metadata only for a template that names it. The length of a text is known without reading it.
SELECT document.ordinal, document.external_id, document.text, document.meta, document.open
FROM (
    SELECT sized.ordinal, sized.external_id, sized.text, sized.meta, count(*) OVER () AS open,
        sum(sized.bytes) OVER (ORDER BY sized.ordinal ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS bytes_before
    FROM (
        SELECT document.ordinal, document.external_id, document.text,
            CASE WHEN :with_meta THEN document.meta ELSE '{}'::jsonb END AS meta,
            octet_length(document.text) + CASE WHEN :with_meta THEN octet_length(document.meta::text) ELSE 0 END AS bytes
        FROM gleaner.documents AS document
        WHERE document.corpus_id = :corpus_id AND document.ordinal BETWEEN :first_ordinal AND :last_ordinal
          AND NOT EXISTS (
              SELECT FROM gleaner.labels AS label WHERE label.job_id = :job_id AND label.ordinal = document.ordinal
          )
    ) AS sized
) AS document
WHERE coalesce(document.bytes_before, 0) < :max_bytes
ORDER BY document.ordinal;

-- name: register_engine(digest, info)$
-- The id of what serves this worker's rows.
INSERT INTO gleaner.engines (digest, info) VALUES (:digest, :info)
ON CONFLICT (digest) DO UPDATE SET digest = excluded.digest
RETURNING id;

-- name: write_rows(job_id, chunk_no, attempt, worker, engine_id, rows)^
-- Write finished rows, if the chunk's fencing token still holds; a row that is there already stays as it is.
-- The share lock keeps a takeover from happening between the check and the commit.
WITH fence AS (
    SELECT 1 FROM gleaner.chunks
    WHERE job_id = :job_id AND chunk_no = :chunk_no AND attempt = :attempt AND state = 'running'
    FOR SHARE
), written AS (
    INSERT INTO gleaner.labels (job_id, ordinal, chunk_no, outcome, label, reason_code, reason, raw_output,
        finish_reason, prompt_tokens, dropped_tokens, parts, output_tokens, cached_tokens, tries, latency_s,
        attempt, worker, engine_id)
    SELECT :job_id, r.ordinal, :chunk_no, r.outcome, r.label, r.reason_code, r.reason, r.raw_output,
        r.finish_reason, r.prompt_tokens, r.dropped_tokens, r.parts, r.output_tokens, r.cached_tokens, r.tries,
        r.latency_s, :attempt, :worker, :engine_id
    FROM jsonb_to_recordset(:rows) AS r(ordinal bigint, outcome text, label jsonb, reason_code text, reason text,
        raw_output text, finish_reason text, prompt_tokens integer, dropped_tokens integer, parts integer,
        output_tokens integer, cached_tokens integer, tries integer, latency_s double precision)
    CROSS JOIN fence
    ORDER BY r.ordinal
    ON CONFLICT (job_id, ordinal) DO NOTHING
    RETURNING 1
)
SELECT EXISTS (SELECT FROM fence) AS held, (SELECT count(*) FROM written) AS written;
