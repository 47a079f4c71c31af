"""Secrets of webhooks: their form, and how they lie in the database."""

from __future__ import annotations

import base64

import pytest
from cryptography.fernet import Fernet
from pydantic import SecretStr, ValidationError

from service.sealing import SecretLost, new_secret, seal, unseal
from service.settings import Settings


def key() -> SecretStr:
    return SecretStr(Fernet.generate_key().decode())


def test_secrets_have_the_form_of_the_standard() -> None:
    made = {new_secret() for _ in range(50)}
    assert len(made) == 50
    for secret in made:
        assert secret.startswith("whsec_")
        assert 24 <= len(base64.b64decode(secret.removeprefix("whsec_"), validate=True)) <= 64


def test_without_a_key_they_lie_as_they_are() -> None:
    secret = new_secret()
    assert seal(secret, ()) == secret
    assert unseal(secret, ()) == secret
    assert unseal(secret, (key(),)) == secret  # stored before there was a key


def test_with_a_key_they_are_encrypted() -> None:
    secret, first, second = new_secret(), key(), key()
    stored = seal(secret, (first,))
    assert secret.removeprefix("whsec_") not in stored
    token = stored.partition(":")[2].encode()
    assert Fernet(first.get_secret_value()).decrypt(token).decode() == secret
    assert unseal(stored, (first,)) == secret
    assert unseal(stored, (second, first)) == secret  # a new key in front: old rows still open
    for keys in ((), (second,)):
        with pytest.raises(SecretLost):
            unseal(stored, keys)


@pytest.mark.parametrize("text", ["", "short", "x" * 44])
def test_a_key_that_is_none_is_refused_at_once(text: str) -> None:
    with pytest.raises(ValidationError, match="webhook_keys"):
        Settings(webhook_keys=(text,))


def test_keys_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Fernet.generate_key().decode()
    monkeypatch.setenv("TILEWRIGHT_WEBHOOK_KEYS", f'["{made}"]')
    settings = Settings()
    assert settings.webhook_keys[0].get_secret_value() == made
    assert made not in repr(settings)
