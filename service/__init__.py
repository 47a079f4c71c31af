"""The service: what knows HTTP, SQL and queues.

In: models, hardware specs and job requests.  Out: job states, events and artifacts by digest.
The database is the truth; messages only wake workers.  Of the compiler it knows the machine
schema, options, errors and the cache port, never the passes.
"""
