"""One attempt: look the name up once, check where it leads, connect there and nowhere else.

No redirects, no proxies, no cookies; of the answer the status line and headers are read, within a
time that bounds the whole attempt, and of these only the status and `Retry-After` are used.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

import httpx

from service.addresses import Address, Allowed, literal
from service.errors import Malformed
from service.push.targets import SETTING, checked

Resolve = Callable[[str, int], Awaitable[list[str]]]
"""The addresses of a host and port, the preferred first."""
_MOST_ADDRESSES = 4
_CONNECT_S = 5.0
_GONE = 410
_MOST_RETRY_AFTER_S = 6 * 3600.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an attempt ended."""

    status: int | None
    """None: there was no answer."""
    error: str | None
    """Why it counts as failed; None for 2xx."""
    duration_s: float
    retry_after_s: float = 0.0

    @property
    def is_good(self) -> bool:
        return self.error is None

    @property
    def is_gone(self) -> bool:
        """The receiver says that it wants no more."""
        return self.status == _GONE


async def resolve(host: str, port: int) -> list[str]:
    """Ask the system's resolver."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in found]


class Refused(Exception):
    """The receiver may not be reached."""


class Sender:
    """Sends requests of one event loop."""

    def __init__(self, allowed: Allowed, timeout_s: float, resolve: Resolve = resolve) -> None:
        self._allowed = allowed
        self._timeout_s = timeout_s
        self._resolve = resolve
        # Certificates of the environment's SSL_CERT_FILE, where it is set, count as elsewhere.
        self._tls: ssl.SSLContext = httpx.create_ssl_context()

    async def send(self, url: str, headers: Mapping[str, str], body: bytes) -> Outcome:
        """POST a body; never raises for what the receiver, its name or the network does."""
        started = time.monotonic()
        status, error, retry_after_s = None, None, 0.0
        try:
            async with asyncio.timeout(self._timeout_s):
                status, retry_after_s = await self._post(url, headers, body)
        except TimeoutError:
            error = f"no answer within {self._timeout_s:g} s"
        except Refused as refusal:
            error = str(refusal)
        except socket.gaierror as failure:
            error = f"the name cannot be resolved: {failure.strerror}"
        except httpx.RemoteProtocolError:
            # Its text quotes what came, which may be the banner of any service.
            error = "what answered does not speak HTTP"
        except (httpx.HTTPError, OSError, UnicodeError) as failure:
            error = f"{type(failure).__name__}: {failure}".removesuffix(": ")[:200]
        else:
            if 300 <= status < 400:
                error = "answered with a redirect, which is not followed"
            elif not 200 <= status < 300:
                error = f"answered {status}"
        return Outcome(status, error, time.monotonic() - started, retry_after_s)

    async def _post(self, text: str, headers: Mapping[str, str], body: bytes) -> tuple[int, float]:
        try:
            url = checked(text, self._allowed)  # settings may have changed since it was stored
        except Malformed as refusal:
            raise Refused(f"refused: {refusal.message}") from refusal
        failure: httpx.HTTPError | None = None
        for address in (await self._addresses(url))[:_MOST_ADDRESSES]:
            try:
                return await self._post_to(address, url, headers, body)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                failure = error
        raise failure or Refused("the name has no address")

    async def _addresses(self, url: httpx.URL) -> list[Address]:
        """Where the name leads now; all or nothing, since one of two may be meant to slip by."""
        port = url.port or (443 if url.scheme == "https" else 80)
        # Names with a scope (`fe80::1%eth0`) are of link-local addresses.
        found = [text.partition("%")[0] for text in await self._resolve(url.host, port)]
        addresses = [a for a in map(literal, dict.fromkeys(found)) if a is not None]
        if not all(self._allowed.may_reach(url.host, address) for address in addresses):
            # Where it leads is not told: names inside are nobody's business outside.
            raise Refused(
                f"refused: {url.host} leads to an address that is not public; the workers' "
                f"{SETTING} may allow it"
            )
        return addresses

    async def _post_to(
        self, address: Address, url: httpx.URL, headers: Mapping[str, str], body: bytes
    ) -> tuple[int, float]:
        timeout = httpx.Timeout(self._timeout_s, connect=min(_CONNECT_S, self._timeout_s))
        async with httpx.AsyncClient(
            verify=self._tls, trust_env=False, follow_redirects=False, timeout=timeout
        ) as client:
            # The address stands in the URL, so that nothing looks the name up again; TLS and the
            # receiver are told the name all the same.
            request = client.build_request(
                "POST", url.copy_with(host=str(address)), content=body,
                headers={**headers, "Host": url.netloc.decode("ascii")},
                extensions={"sni_hostname": url.raw_host.decode("ascii")},
            )  # fmt: skip
            response = await client.send(request, stream=True)
            await response.aclose()  # unread: it is closed with its connection
            return response.status_code, _retry_after_s(response.headers.get("Retry-After"))


def _retry_after_s(value: str | None) -> float:
    """How long a receiver asks to be left alone, as far as it says so in seconds."""
    if value is None or not (value.isascii() and value.isdecimal()):
        return 0.0
    return min(float(value[:9]), _MOST_RETRY_AFTER_S)
