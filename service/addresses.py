"""Which addresses a message may be sent to.  Pure.

Users choose the receiver, and the server stands in networks that users do not reach: whatever is
not public is refused, unless a setting names it.

Source: the special-purpose registries of IANA for IPv4 and IPv6, as of 2025; of IPv6 only what is
given out as global unicast counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_NOT_PUBLIC_4 = tuple(
    IPv4Network(text)
    for text in (
        "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16",
        "172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16",
        "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4",
        "168.63.129.16/32",  # public by number, but a cloud's own service inside its machines
    )
)  # fmt: skip
_PUBLIC_6 = IPv6Network("2000::/3")
_NOT_PUBLIC_6 = tuple(
    IPv6Network(text) for text in ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")
)
"""The first holds Teredo, the third is 6to4: both reach IPv4 addresses in disguise."""
_NAT64 = IPv6Network("64:ff9b::/96")
"""What networks without IPv4 resolve names of IPv4 hosts to; its last 32 bits are the address."""


def plain(address: Address) -> Address:
    """The address that is meant: an IPv4 one that is written as IPv6 is taken out of it."""
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address in _NAT64:
            return IPv4Address(int(address) & 0xFFFFFFFF)
    return address


def is_public(address: Address) -> bool:
    """Whether an address is for everybody: no private, local, shared, reserved or multicast one."""
    address = plain(address)
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _NOT_PUBLIC_4)
    return address in _PUBLIC_6 and not any(address in network for network in _NOT_PUBLIC_6)


def literal(host: str) -> Address | None:
    """The address that a host is written as, None for a name."""
    try:
        return ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class Allowed:
    """What may be reached although it is not public."""

    names: frozenset[str]
    networks: tuple[Network, ...]

    @classmethod
    def of(cls, entries: Sequence[str]) -> Allowed:
        """Read a list of names, addresses and networks.

        Raises:
            ValueError: a network has bits behind its mask, or an entry is empty.
        """
        names, networks = list[str](), list[Network]()
        for entry in entries:
            text = entry.strip()
            if not text:
                raise ValueError("an entry is a name, an address or a network, not empty")
            if "/" in text or literal(text) is not None:
                networks.append(ip_network(text.removeprefix("[").removesuffix("]")))
            else:
                names.append(text.lower().removesuffix("."))
        return cls(frozenset(names), tuple(networks))

    def has(self, host: str) -> bool:
        """Whether a host is named, or is an address of a network that is."""
        address = literal(host)
        if address is None:
            return host.lower().removesuffix(".") in self.names
        return self.holds(address)

    def holds(self, address: Address) -> bool:
        """Whether an address is in a network that is named."""
        meant = plain(address)
        return any(meant.version == n.version and meant in n for n in self.networks)

    def may_reach(self, host: str, address: Address) -> bool:
        """Whether a host may be reached at an address that its name stands for."""
        return is_public(address) or self.has(host) or self.holds(address)
