"""Persistence: tables, sessions, every SQL statement (repos/) and the blob store.

In: values of the service.  Out: frozen records.  Must not know HTTP, Celery or the compiler's
passes.  Nothing here commits: `Database.write()` does, once, at its end.
"""
