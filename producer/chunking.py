"""A job cut into chunks: runs of consecutive documents, one message each."""

from schemas.database import Connection, queries


def cut_chunks(connection: Connection, job_id: int, corpus_id: int, chunk_size: int) -> int:
    """Cut a corpus for a job, inside the transaction that creates the job. Returns the number of chunks.

    Chunks count documents, not ordinals: gaps left by rejected records make no chunk smaller.
    """
    span = queries.ordinals_of_corpus(connection, corpus_id=corpus_id)
    if span["dense"]:
        # Without a gap nobody need read the documents to count them, which takes as long as a tenth of loading them.
        first, last = span["first_ordinal"], span["last_ordinal"]
        return int(queries.cut_dense_chunks(connection, job_id=job_id, first=first, last=last, chunk_size=chunk_size))
    count: int = queries.cut_chunks(connection, job_id=job_id, corpus_id=corpus_id, chunk_size=chunk_size)
    return count
