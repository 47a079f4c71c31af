"""Every SQL statement of the service, one module per aggregate.

Functions take the session of the caller's transaction and never commit.  State changes are single
conditional UPDATEs; a result of zero rows means somebody else was faster, and the caller decides.
"""
