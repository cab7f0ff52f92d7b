-- name: lock_corpus(fingerprint)!
-- Wait until nobody else loads the same input; held until the transaction ends.
SELECT pg_advisory_xact_lock(hashtextextended('gleaner.corpora.' || :fingerprint, 0));

-- name: corpus_by_fingerprint(fingerprint)^
-- The corpus that was loaded from the same bytes in the same way, if any.
SELECT id, name, document_count, rejected_count, unselected_count, difference FROM gleaner.corpora
WHERE fingerprint = :fingerprint;

-- name: corpus_before(name, field_mapping, narrowing)^
-- The newest corpus of this name that was made in the same way, to compare the next one with.
SELECT id, name, document_count FROM gleaner.corpora
WHERE name = :name AND field_mapping = :field_mapping AND selection - 'group_by' - 'only_new' = :narrowing
ORDER BY id DESC LIMIT 1;

-- name: insert_corpus(name, uri, fingerprint, field_mapping, selection, base_id)$
-- Start a corpus. Its counts are set by count_corpus before the transaction ends.
INSERT INTO gleaner.corpora (name, uri, fingerprint, field_mapping, selection, base_id, document_count, rejected_count,
    unselected_count)
VALUES (:name, :uri, :fingerprint, :field_mapping, :selection, :base_id, 0, 0, 0)
RETURNING id;

-- name: delete_corpus(corpus_id)!
-- Take back a corpus that turned out to hold nothing, in the transaction that started it.
WITH removed AS (DELETE FROM gleaner.corpus_removed WHERE corpus_id = :corpus_id)
DELETE FROM gleaner.corpora WHERE id = :corpus_id;

-- name: count_corpus(document_count, rejected_count, unselected_count, difference, corpus_id)!
-- Freeze the counts of a corpus, in the transaction that loads it.
UPDATE gleaner.corpora SET document_count = :document_count, rejected_count = :rejected_count,
    unselected_count = :unselected_count, difference = :difference
WHERE id = :corpus_id;

-- name: rejects_by_code(corpus_id)
-- How many records of a corpus were rejected, for each reason code.
SELECT code, count(*) AS rejected FROM gleaner.corpus_rejects
WHERE corpus_id = :corpus_id GROUP BY code ORDER BY count(*) DESC, code;

-- name: list_rejects(corpus_id, after, batch)
-- Rejected records of a corpus after a position, in order: pages of a list that may be long.
SELECT position, line, source, code, reason, excerpt FROM gleaner.corpus_rejects
WHERE corpus_id = :corpus_id AND position > :after ORDER BY position LIMIT :batch;
