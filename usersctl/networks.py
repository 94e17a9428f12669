"""Client addresses, and the ranges that they are compared with."""

import ipaddress
from collections.abc import Iterable
from contextlib import suppress
from functools import lru_cache
from typing import Any

from usersctl.config.values import UNIX
from usersctl.errors import Invalid

MOST_RANGES = 50  # of an API token
LONGEST_ADDRESS = 45  # characters


@lru_cache(maxsize=1000)  # there are few proxies and few ranges
def is_in(address: str, networks: tuple[Any, ...]) -> bool:
    if address == UNIX:
        return UNIX in networks
    parsed = _parsed(address)
    if parsed is None:
        return False
    return any(parsed in network for network in networks if network != UNIX)


def normal_address(text: str) -> str | None:
    """In its one written form; None if it is no address."""
    return _normal_address(text) if len(text) <= LONGEST_ADDRESS else None


@lru_cache(maxsize=1000)
def _normal_address(text: str) -> str | None:
    parsed = _parsed(text)
    return str(parsed) if parsed else None


def _parsed(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """None if it is no address. A proxy that listens on one socket for both families writes IPv4 addresses as mapped ones."""
    try:
        parsed = ipaddress.ip_address(text)
    except ValueError:
        return None
    return getattr(parsed, "ipv4_mapped", None) or parsed


def normal_ranges(texts: Iterable[str]) -> str:
    """As an API token stores them: in their one written form, each once, separated by blanks."""
    ranges = sorted({_normal_range(text.strip()) for text in texts})
    if not ranges:
        # An empty list of a program must not make a token that works anywhere.
        raise Invalid("Give at least one range, or leave them out for a token that works anywhere")
    if len(ranges) > MOST_RANGES:
        raise Invalid(f"Too many ranges: {MOST_RANGES} at most")
    return " ".join(ranges)


def is_within(address: str | None, ranges: str) -> bool:
    """Whether a client at this address may use an API token with these ranges."""
    return address is not None and is_in(address, _networks(ranges))


@lru_cache(maxsize=1000)
def _networks(ranges: str) -> tuple[Any, ...]:
    return tuple(map(ipaddress.ip_network, ranges.split()))


def _normal_range(text: str) -> str:
    problem = f"Not an address or range: {text[:60]!r}"
    given = None
    with suppress(ValueError):
        given = ipaddress.ip_interface(text)
    if given is None or "%" in text:  # an interface of some machine, as in fe80::1%eth0
        raise Invalid(problem, hint="write 192.0.2.7, 10.0.0.0/8 or 2001:db8::/32")
    network = given.network
    if given.ip != network.network_address:
        raise Invalid(f"{problem}; the range is {network}")
    mapped = getattr(network.network_address, "ipv4_mapped", None)
    if mapped is not None:  # so it has 96 bits or more: the last bits before the address of IPv4 are ones
        # Clients at such addresses are compared by their IPv4 address.
        network = ipaddress.ip_network((mapped, network.prefixlen - 96))
    return str(network)
