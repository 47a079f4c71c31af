"""The Python SDK of the HTTP API, over httpx.

Comes in: a server's URL and plain values.  Goes out: the API's JSON documents as dictionaries, and
files on disk whose digest was checked.  Every refusal of the server becomes an `ApiError` that
carries the problem document.  It must not know the database, the queue or the compiler.
"""

from service.client.client import Client
from service.client.errors import ApiError, DigestMismatch, ServerUnreachable, WaitTimeout

__all__ = ["ApiError", "Client", "DigestMismatch", "ServerUnreachable", "WaitTimeout"]
