-- name: ordinals_of_corpus(corpus_id)^
-- The first and last ordinal of a corpus, and whether there is a document for each between them.
SELECT span.first_ordinal, span.last_ordinal,
    span.last_ordinal - span.first_ordinal + 1 = corpus.document_count AS dense
FROM gleaner.corpora AS corpus CROSS JOIN LATERAL (
    SELECT min(ordinal) AS first_ordinal, max(ordinal) AS last_ordinal
    FROM gleaner.documents WHERE corpus_id = corpus.id
) AS span
WHERE corpus.id = :corpus_id;

-- name: cut_dense_chunks(job_id, first, last, chunk_size)!
-- Cut a corpus without gaps into chunks of consecutive documents. In the transaction that creates the job.
INSERT INTO gleaner.chunks (job_id, chunk_no, first_ordinal, last_ordinal, size, state, attempt, failures)
SELECT :job_id, ((start - :first) / :chunk_size)::integer, start, least(start + :chunk_size - 1, :last),
    least(:chunk_size, :last - start + 1), 'queued', 0, 0
FROM generate_series(:first::bigint, :last::bigint, :chunk_size::bigint) AS start;
