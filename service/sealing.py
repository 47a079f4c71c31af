"""Secrets of subscriptions: made here, encrypted in the database where settings give a key.

Unlike an API key's, a secret has to be read again to sign with it, so a digest does not do.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Sequence

from pydantic import SecretStr

_BYTES = 32
"""Standard Webhooks asks for 24 to 64."""
_SEALED = "fernet:"


class SecretLost(Exception):
    """None of the keys opens a secret: the key that sealed it is not among them."""


def new_secret() -> str:
    """A secret in the form of Standard Webhooks: `whsec_` and base64."""
    return "whsec_" + base64.b64encode(secrets.token_bytes(_BYTES)).decode()


def seal(secret: str, keys: Sequence[SecretStr]) -> str:
    """A secret as it is stored: encrypted with the first key, as it is where there is none."""
    if not keys:
        return secret
    from cryptography.fernet import Fernet

    return _SEALED + Fernet(keys[0].get_secret_value()).encrypt(secret.encode()).decode()


def unseal(stored: str, keys: Sequence[SecretStr]) -> str:
    """The secret of what is stored.

    Raises:
        SecretLost: it was sealed with a key that is not among these.
    """
    if not stored.startswith(_SEALED):
        return stored
    if not keys:
        raise SecretLost("the secret is encrypted and there is no key")
    from cryptography.fernet import Fernet, InvalidToken, MultiFernet

    opener = MultiFernet([Fernet(key.get_secret_value()) for key in keys])
    try:
        return opener.decrypt(stored.removeprefix(_SEALED).encode()).decode()
    except InvalidToken as error:
        raise SecretLost("none of the keys opens the secret") from error


def check_key(key: SecretStr) -> SecretStr:
    """Give a key back.

    Raises:
        ValueError: it has not the form of a Fernet key.
    """
    from cryptography.fernet import Fernet

    try:
        Fernet(key.get_secret_value())
    except ValueError as error:
        raise ValueError("a key is 32 bytes in URL-safe base64") from error
    return key
