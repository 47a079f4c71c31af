"""The address a subscription is sent to, as users write it.  Pure."""

from __future__ import annotations

import httpx

from service.addresses import Allowed, is_public, literal
from service.errors import Malformed

MOST_CHARS = 2000
SETTING = "TILEWRIGHT_WEBHOOK_HOSTS"


def checked(text: str, allowed: Allowed) -> httpx.URL:
    """Read a receiver's URL.

    A name is not looked up: what it stands for is decided anew before each attempt.

    Raises:
        Malformed: it is no URL, not https, has a user or a fragment, or names an address that is
            not public.
    """
    try:
        url = httpx.URL(text)
    except (httpx.InvalidURL, UnicodeError) as error:
        raise _refused(text, f"this is no URL: {error}") from error
    is_clean = text.isprintable() and " " not in text
    if url.scheme not in {"http", "https"} or not url.host or not is_clean:
        raise _refused(text, "a receiver has an https URL with a host")
    if url.userinfo or url.fragment:
        raise _refused(text, "a receiver's URL has no user, password or fragment")
    if url.port is not None and not 0 < url.port < 65536:
        raise _refused(text, f"there is no port {url.port}")
    address = literal(url.host)
    if address is not None and not (is_public(address) or allowed.holds(address)):
        raise _refused(
            text, f"{url.host} is not a public address",
            remedy=f"Name a host that others reach, or let the server's {SETTING} allow this one.",
        )  # fmt: skip
    if url.scheme == "http" and not allowed.has(url.host):
        raise _refused(
            text, "messages travel by https",
            remedy=f"Use https, or let the server's {SETTING} allow {url.host}.",
        )  # fmt: skip
    return url


def _refused(text: str, why: str, remedy: str | None = None) -> Malformed:
    return Malformed(
        why, pointer="/url", actual=text[:200], limit="https://HOST[:PORT]/PATH",
        remedy=remedy or "Give the URL that your receiver listens on.",
    )  # fmt: skip
