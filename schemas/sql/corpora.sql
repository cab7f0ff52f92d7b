-- name: lock_corpus(fingerprint)!
-- Wait until nobody else loads the same input; held until the transaction ends.
SELECT pg_advisory_xact_lock(hashtextextended('gleaner.corpora.' || :fingerprint, 0));

-- name: corpus_by_fingerprint(fingerprint)^
-- The corpus that was loaded from the same bytes under the same field mapping, if any.
SELECT id, name, document_count, rejected_count FROM gleaner.corpora WHERE fingerprint = :fingerprint;

-- name: insert_corpus(name, uri, fingerprint, field_mapping)$
-- Start a corpus. Its counts are set by count_corpus before the transaction ends.
INSERT INTO gleaner.corpora (name, uri, fingerprint, field_mapping, document_count, rejected_count)
VALUES (:name, :uri, :fingerprint, :field_mapping, 0, 0)
RETURNING id;

-- name: duplicate_documents(corpus_id)
-- Documents whose external id an earlier document of the corpus has, in order.
SELECT document.ordinal, document.first_ordinal, document.external_id, left(document.text, 200) AS excerpt
FROM (
    SELECT ordinal, external_id, text, min(ordinal) OVER (PARTITION BY external_id) AS first_ordinal
    FROM gleaner.documents WHERE corpus_id = :corpus_id
) AS document
WHERE document.ordinal <> document.first_ordinal
ORDER BY document.ordinal;

-- name: delete_documents(corpus_id, ordinals)!
-- Take documents out, by their key. Not by a join with the duplicates: Postgres has no statistics of a corpus that is
-- being loaded, takes it for one row, and compares each duplicate with each.
DELETE FROM gleaner.documents WHERE corpus_id = :corpus_id AND ordinal = ANY(:ordinals);

-- name: count_corpus(document_count, rejected_count, corpus_id)!
-- Freeze the counts of a corpus, in the transaction that loads it.
UPDATE gleaner.corpora SET document_count = :document_count, rejected_count = :rejected_count
WHERE id = :corpus_id;

-- name: rejects_by_code(corpus_id)
-- How many records of a corpus were rejected, for each reason code.
SELECT code, count(*) AS rejected FROM gleaner.corpus_rejects
WHERE corpus_id = :corpus_id GROUP BY code ORDER BY count(*) DESC, code;

-- name: list_rejects(corpus_id, after, batch)
-- Rejected records of a corpus after a position, in order: pages of a list that may be long.
SELECT position, line, code, reason, excerpt FROM gleaner.corpus_rejects
WHERE corpus_id = :corpus_id AND position > :after ORDER BY position LIMIT :batch;
