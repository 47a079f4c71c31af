"""The worker process: takes jobs from the queue, runs them in the sandbox, tells how it goes."""
