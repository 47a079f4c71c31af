"""Messages to receivers outside: where they may go, how they are signed, when they are tried again.

In: rows of the outbox that the end of a job wrote.  Out: signed HTTP requests (Standard Webhooks)
and what became of them.  Whatever a receiver answers is foreign: of it only the status is read.
Must not know jobs, HTTP routes, or who subscribes.
"""
