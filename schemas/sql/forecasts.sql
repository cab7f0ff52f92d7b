-- name: set_forecast(job_id, forecast)!
-- What a job is expected to take, once, when it is made.
UPDATE gleaner.jobs SET forecast = :forecast WHERE id = :job_id AND forecast IS NULL;

-- name: last_jobs(model, batch)
-- The last finished jobs of a model, newest first, with how long their newest run took.
SELECT id, label_spec_id, final_counts, extract(epoch FROM finished_at - started_at)::double precision AS running_s
FROM gleaner.jobs
WHERE model = :model AND state = 'done' AND finished_at > started_at AND final_counts IS NOT NULL
ORDER BY finished_at DESC LIMIT :batch;

-- name: token_figures(job_id, batch)^
-- What rows of a job took: of the first of them, since to read all would take as long as to label a few. In order, or
-- Postgres would look through other jobs' rows for them.
SELECT count(*) AS rows, avg(prompt_tokens)::double precision AS prompt_tokens,
    avg(output_tokens)::double precision AS output_tokens,
    coalesce(stddev_samp(output_tokens), 0)::double precision AS output_spread,
    avg(coalesce(cached_tokens, 0))::double precision AS cached_tokens, count(DISTINCT worker) AS workers
FROM (
    SELECT prompt_tokens, output_tokens, cached_tokens, worker FROM gleaner.labels
    WHERE job_id = :job_id AND outcome = 'ok' AND prompt_tokens > 0 AND parts = 1
    ORDER BY ordinal LIMIT :batch
) AS label;

-- name: chars_a_token(job_id, batch, template_tokens)$
-- Characters of documents and system prompt for each token of the prompts but those of the chat template, of some rows of
-- a job.
SELECT sum(length(document.text) + length(spec.system_prompt))::double precision
    / greatest(sum(label.prompt_tokens - :template_tokens), 1)
FROM (
    SELECT ordinal, prompt_tokens FROM gleaner.labels
    WHERE job_id = :job_id AND outcome = 'ok' AND prompt_tokens > 0 AND parts = 1
    ORDER BY ordinal LIMIT :batch
) AS label
JOIN gleaner.jobs AS job ON job.id = :job_id
JOIN gleaner.label_specs AS spec ON spec.id = job.label_spec_id
JOIN gleaner.documents AS document ON document.corpus_id = job.corpus_id AND document.ordinal = label.ordinal;

-- name: sample_documents(corpus_id, ordinals)
-- The documents of a corpus that stand at these ordinals or next after them: where others were rejected or not selected
-- there is none.
SELECT DISTINCT ON (document.ordinal) document.external_id, document.text, document.meta
FROM unnest(:ordinals::bigint[]) AS drawn
CROSS JOIN LATERAL (
    SELECT ordinal, external_id, text, meta FROM gleaner.documents
    WHERE corpus_id = :corpus_id AND ordinal >= drawn ORDER BY ordinal LIMIT 1
) AS document;

-- name: first_documents(corpus_id, batch)
-- The first documents of a corpus.
SELECT external_id, text, meta FROM gleaner.documents WHERE corpus_id = :corpus_id ORDER BY ordinal LIMIT :batch;

-- name: last_ordinal(corpus_id)$
-- The greatest ordinal of a corpus.
SELECT max(ordinal) FROM gleaner.documents WHERE corpus_id = :corpus_id;

-- name: last_context(model)$
-- Tokens of prompt and output together that the engine takes which last served this model.
SELECT (info ->> 'max_model_len')::integer FROM gleaner.engines
WHERE info ->> 'model' = :model ORDER BY registered_at DESC LIMIT 1;

-- name: rows_of_job(job_id)
-- The rows of a small job with the ids of their documents.
SELECT document.external_id, label.outcome, label.label, label.reason_code, label.reason, label.prompt_tokens,
    label.output_tokens
FROM gleaner.labels AS label
JOIN gleaner.jobs AS job ON job.id = label.job_id
JOIN gleaner.documents AS document ON document.corpus_id = job.corpus_id AND document.ordinal = label.ordinal
WHERE label.job_id = :job_id ORDER BY label.ordinal;

-- name: forecast_of(job_id)$
-- What a job was expected to take when it was made.
SELECT forecast FROM gleaner.jobs WHERE id = :job_id;
