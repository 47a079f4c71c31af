"""Where messages may go: by address, by name, by setting, and by URL."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from service.addresses import Allowed, is_public, plain
from service.errors import Malformed
from service.push.backoff import JITTER, LONGEST_S, pause_s
from service.push.targets import checked
from service.settings import Settings

NOBODY = Allowed.of(())
INSIDE = (
    "127.0.0.1", "127.8.9.1", "0.0.0.0", "0.1.2.3", "10.0.0.1", "172.16.0.1", "172.31.255.255",
    "192.168.1.1", "169.254.169.254", "100.64.0.1", "100.127.255.255", "100.100.100.200",
    "192.0.0.1", "192.0.2.5", "192.88.99.1", "198.18.0.1", "198.19.255.255", "198.51.100.7",
    "203.0.113.9", "224.0.0.1", "239.255.255.250", "240.0.0.1", "255.255.255.255",
    "168.63.129.16", "::", "::1", "::127.0.0.1", "::ffff:127.0.0.1", "::ffff:10.0.0.1",
    "::ffff:169.254.169.254", "fe80::1", "fec0::1", "fc00::1", "fd00:ec2::254", "ff02::1",
    "2001::1", "2001:db8::1", "2001:10::1", "2002:7f00:1::1", "2002:a00:1::1", "3fff::1",
    "64:ff9b::7f00:1", "64:ff9b::a00:1", "64:ff9b:1::1", "100::1", "4000::1", "5f00::1",
)  # fmt: skip
OUTSIDE = (
    "1.1.1.1", "8.8.8.8", "100.63.255.255", "100.128.0.0", "172.15.255.255", "172.32.0.0",
    "192.169.0.1", "198.17.255.255", "223.255.255.255", "2606:4700::1111", "2a00:1450::1",
    "::ffff:8.8.8.8", "64:ff9b::808:808", "2400::1", "2620:0:1::1",
)  # fmt: skip


@pytest.mark.parametrize("text", INSIDE)
def test_what_is_not_for_everybody_is_refused(text: str) -> None:
    assert not is_public(ip_address(text))
    assert not NOBODY.may_reach("example.com", ip_address(text))


@pytest.mark.parametrize("text", OUTSIDE)
def test_what_is_for_everybody_is_reached(text: str) -> None:
    assert is_public(ip_address(text))
    assert NOBODY.may_reach("example.com", ip_address(text))


def test_the_standard_library_agrees_where_it_judges_alike() -> None:
    """An independent table: whatever it calls private, loopback, link-local, multicast or reserved
    is refused here, too."""
    for text in (*INSIDE, *OUTSIDE):
        address = plain(ip_address(text))
        names = ("is_private", "is_loopback", "is_link_local", "is_multicast", "is_unspecified")
        if any(getattr(address, name) for name in names):
            assert not is_public(ip_address(text)), text


@pytest.mark.parametrize(
    ("entries", "host", "address", "is_reached"),
    [
        (["ci.internal"], "ci.internal", "10.0.0.1", True),
        (["ci.internal"], "CI.Internal.", "10.0.0.1", True),
        (["CI.internal"], "ci.internal", "10.0.0.1", True),
        (["ci.internal"], "evil.ci.internal", "10.0.0.1", False),
        (["ci.internal"], "ci.internal.evil.com", "10.0.0.1", False),
        (["10.2.0.0/16"], "anything", "10.2.3.4", True),
        (["10.2.0.0/16"], "anything", "10.3.0.1", False),
        (["10.2.0.0/16"], "anything", "::ffff:10.2.0.1", True),
        (["10.0.0.1"], "10.0.0.1", "10.0.0.1", True),
        (["10.0.0.1"], "10.0.0.2", "10.0.0.2", False),
        (["fd00::/8"], "anything", "fd12::1", True),
        (["::1"], "[::1]", "::1", True),
        (["0.0.0.0/0"], "anything", "::1", False),
    ],
)
def test_settings_allow_by_name_and_by_network(
    entries: list[str], host: str, address: str, is_reached: bool
) -> None:
    assert Allowed.of(entries).may_reach(host, ip_address(address)) is is_reached


@pytest.mark.parametrize("entry", ["", " ", "10.0.0.1/8", "10.0.0.0/33"])
def test_a_setting_that_means_nothing_is_refused(entry: str) -> None:
    with pytest.raises(ValueError, match="webhook_hosts"):
        Settings(webhook_hosts=(entry,))


@pytest.mark.parametrize(
    "url",
    [
        "https://example.com/hook", "https://example.com:8443/a?b=c", "https://1.1.1.1/",
        "https://[2606:4700::1111]/", "https://bücher.example/", "https://10.2.0.9/in",
        "http://10.2.0.9/in", "http://ci.internal:8080/in",
    ],
)  # fmt: skip
def test_urls_that_are_taken(url: str) -> None:
    assert checked(url, Allowed.of(["ci.internal", "10.2.0.0/16"])).host


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://example.com/", "https"), ("http://1.1.1.1/", "https"),
        ("https://127.0.0.1/", "not a public"), ("https://[::1]/", "not a public"),
        ("https://[::ffff:127.0.0.1]/", "not a public"), ("https://169.254.169.254/", "public"),
        ("https://user@example.com/", "no user"), ("https://a:b@example.com/", "no user"),
        ("https://example.com/#x", "fragment"), ("https://example.com:0/", "no port 0"),
        ("https://example.com:99999/", "no port 99999"), ("ftp://example.com/", "https URL"),
        ("example.com", "https URL"), ("https:///x", "https URL"), ("https://", "https URL"),
        ("file:///etc/passwd", "https URL"), ("https://exa mple.com/", "URL"),
        ("https://example.com/\n", "URL"), ("gopher://127.0.0.1:6379/", "https URL"),
    ],
)  # fmt: skip
def test_urls_that_are_refused(url: str, why: str) -> None:
    with pytest.raises(Malformed, match=why) as caught:
        checked(url, NOBODY)
    assert caught.value.pointer == "/url"


def test_pauses_grow_and_are_the_same_for_the_same_message() -> None:
    """Fourfold from five seconds to six hours, each within a quarter of that."""
    wanted = [5.0 * 4**n for n in range(6)]
    for number, middle in enumerate(wanted, start=1):
        pauses = {pause_s(f"msg_{n}", number, 5.0) for n in range(200)}
        assert len(pauses) == 200
        assert all(middle * (1 - JITTER) <= p <= middle * (1 + JITTER) for p in pauses)
        assert min(pauses) < middle * 0.8
        assert max(pauses) > middle * 1.2
    days = [sum(pause_s(f"msg_{n}", k, 5.0) for k in range(1, 18)) / 86400 for n in range(50)]
    assert all(2.3 < d < 3.3 for d in days)  # 18 attempts in three days, more or less
    assert pause_s("msg_1", 3, 5.0) == pause_s("msg_1", 3, 5.0)
    assert pause_s("msg_1", 3, 5.0) != pause_s("msg_2", 3, 5.0)
    assert pause_s("msg_1", 10_000, 5.0) <= LONGEST_S * (1 + JITTER)
