"""Where alerts may be sent: spellings of addresses, names that lead inside, and names that change."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from breakloop.alerts.transport import parse_url, refusal, resolve_checked, resolve_host
from breakloop.errors import AlertError
from tests.alert_world import CANARY, fixed
from tests.each import each

PUBLIC = fixed("93.184.215.14")


@each(
    "url",
    [
        "ftp://example.com/x",
        "file:///etc/passwd",
        "gopher://example.com",
        "javascript:alert(1)",
        "//example.com/x",
        "example.com",
        "https://",
        "https:///x",
        "https://user@example.com/",
        "https://user:pass@example.com/",
        "https://@example.com/",
        "https://example.com:0/",
        "https://example.com:99999/",
        "https://example.com:x/",
        "https://exa mple.com/",
        "https://example.com/\r\nX-Evil: 1",
        "https://example.com\\@127.0.0.1/",
        "https://exämple.com/",
        "https://-example.com/",
        "https://example..com/",
        "https://[::1/",
        "https://[::1%25eth0]/",
        "https://[fe80::1%eth0]/",
        "https://%31%32%37.0.0.1/",
        "https://[v1.fe]/",
        "https://example.com/" + "x" * 3000,
        # addresses, as some programs read them
        "http://2130706433/",
        "http://0x7f000001/",
        "http://0x7f.1/",
        "http://0177.0.0.1/",
        "http://127.1/",
        "http://127.0.1/",
        "http://127.0.0.01/",
        "http://0x7f.0.0.0x1/",
        "http://1.2.3.4.5/",
        "http://256.1.1.1/",
    ],
)
def test_what_is_no_target(url: str) -> None:
    """Refused before anybody is asked; what may be a secret in it is not repeated (Y-4)."""
    with pytest.raises(AlertError) as raised:
        parse_url(url)
    assert "pass" not in str(raised.value).replace("password", "")


@each(
    "host",
    [
        "127.0.0.1", "127.8.9.1", "10.0.0.1", "172.16.3.4", "192.168.1.1", "169.254.1.1", "100.64.0.1", "0.0.0.0",
        "0.1.2.3", "192.0.2.1", "198.18.0.1", "203.0.113.9", "224.0.0.1", "239.1.2.3", "240.0.0.1", "255.255.255.255",
        "169.254.169.254", "100.100.100.200", "168.63.129.16",
        "[::]", "[::1]", "[fe80::1]", "[fec0::1]", "[fc00::1]", "[fd00:ec2::254]", "[ff02::1]", "[2001:db8::1]",
        "[::ffff:127.0.0.1]", "[::ffff:10.0.0.1]", "[::ffff:a9fe:a9fe]", "[::127.0.0.1]", "[::7f00:1]",
        "[64:ff9b::7f00:1]", "[64:ff9b::a00:1]", "[64:ff9b:1::1]", "[2002:7f00:1::]", "[2002:a00:1::1]",
        "[100::1]", "[5f00::1]", "[4000::1]",
    ],
)  # fmt: skip
def test_addresses_that_are_not_public(host: str) -> None:
    """Literal, and as the answer for a name (Y-4)."""
    with pytest.raises(AlertError, match="is not allowed"):
        resolve_checked(parse_url(f"http://{host}/x"), PUBLIC, allow_private=False)
    with pytest.raises(AlertError, match="is not allowed"):
        resolve_checked(parse_url("https://hooks.example.com/x"), fixed(host.strip("[]")), allow_private=False)


@pytest.mark.parametrize("host", ["93.184.215.14", "8.8.8.8", "[2606:4700::1111]", "[64:ff9b::808:808]"])
def test_public_addresses(host: str) -> None:
    """Without asking anybody (Y-4)."""
    assert resolve_checked(parse_url(f"https://{host}/"), fixed("127.0.0.1"), allow_private=False) == [host.strip("[]")]


@pytest.mark.parametrize("host", ["127.0.0.1", "10.0.0.1", "[::1]", "[fd12::1]", "169.254.1.1", "[::ffff:127.0.0.1]"])
def test_private_addresses_can_be_allowed(host: str) -> None:
    """For a receiver in one's own network (Y-4)."""
    assert resolve_checked(parse_url(f"http://{host}/"), PUBLIC, allow_private=True)


@pytest.mark.parametrize("host", ["0.0.0.0", "169.254.169.254", "[fd00:ec2::254]", "224.0.0.1", "[::ffff:a9fe:a9fe]", "100.100.100.200"])  # fmt: skip
def test_what_is_never_allowed(host: str) -> None:
    """Credentials of the machine, and addresses of no machine (Y-4)."""
    with pytest.raises(AlertError, match="is not allowed"):
        resolve_checked(parse_url(f"http://{host}/"), PUBLIC, allow_private=True)


def test_one_bad_address_is_enough() -> None:
    """A name must not have a public address for the check and a private one for the connection (Y-4)."""
    with pytest.raises(AlertError, match=r"hooks\.example\.com is not allowed: it is this machine"):
        resolve_checked(
            parse_url("https://hooks.example.com/"), fixed("93.184.215.14", "127.0.0.1"), allow_private=False
        )
    with pytest.raises(AlertError, match="not allowed"):
        resolve_checked(parse_url("https://hooks.example.com/"), fixed("fe80::1%eth0"), allow_private=False)


@pytest.mark.parametrize("answer", [(), ("nonsense",)])
def test_names_without_an_address(answer: tuple[str, ...]) -> None:
    with pytest.raises(AlertError, match=r"example\.com (has no address|cannot be resolved)"):
        resolve_checked(parse_url("https://example.com/"), fixed(*answer), allow_private=True)


def test_names_that_cannot_be_resolved() -> None:
    def fails(host: str, port: int) -> list[str]:
        raise OSError("no such name")

    with pytest.raises(AlertError, match="cannot be resolved"):
        resolve_checked(parse_url("https://example.com/"), fails, allow_private=True)


def test_a_url_is_taken_apart() -> None:
    """The host is as certificates have it; what stands behind it may hold secrets, and is not shown."""
    found = parse_url(f"HTTPS://Hooks.Example.com.:8443/a?token={CANARY}#part")
    assert (found.scheme, found.host, found.port, found.path) == (
        "https",
        "hooks.example.com",
        8443,
        f"/a?token={CANARY}",
    )
    assert found.authority == "hooks.example.com:8443"
    assert CANARY not in repr(found)
    assert parse_url("http://[2606:4700::1111]").authority == "[2606:4700::1111]"
    assert parse_url("http://example.com:80").authority == "example.com"


def test_the_system_resolves() -> None:
    assert set(resolve_host("localhost", 80)) <= {"127.0.0.1", "::1"}


def test_reasons_in_words() -> None:
    assert refusal(ip_address("8.8.8.8"), allow_private=False) == ""
    assert refusal(ip_address("10.0.0.1"), allow_private=False).startswith("it is a private or reserved address")
    assert refusal(ip_address("169.254.169.254"), allow_private=True) == "it is the address of a metadata service"
