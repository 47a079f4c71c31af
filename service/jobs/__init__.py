"""What happens to jobs: submit, query, cancel; for workers: claim, heartbeat, reconcile.

In: values and ids.  Out: records.  Each function is one transaction (or says so); messages go out
only after the commit.  Must not know HTTP; the worker side must not know the compiler.
"""
