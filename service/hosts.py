"""Names and addresses a server is reached by."""

from __future__ import annotations

from ipaddress import ip_address


def is_loopback(host: str) -> bool:
    """Say whether only this machine reaches what listens on `host`; an empty one is everybody."""
    if host.lower() == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def host_name(authority: str) -> str:
    """The name or address in a `Host` header, lower case, without port, brackets and last dot."""
    name = authority.strip().lower()
    if name.startswith("["):
        return name[1:].partition("]")[0]
    return name.partition(":")[0].removesuffix(".")
