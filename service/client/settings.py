"""What a client takes from the environment: nothing but the key for its server."""

from __future__ import annotations

import os

KEY_VARIABLE = "TILEWRIGHT_KEY"
"""Holds the API key.  No option of the command line does: other users of the machine see those."""


def key_of_environment() -> str | None:
    """The API key for whatever server is asked."""
    return os.environ.get(KEY_VARIABLE) or None
