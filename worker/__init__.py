"""The worker: takes chunks from the queue, labels their documents with its engine, writes rows to Postgres."""
