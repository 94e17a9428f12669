"""Which addresses a webhook may reach: a name may resolve to anything, so each address is checked, and then connected to."""

import socket
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network

from usersctl.webhooks.errors import NotDelivered

_GLOBAL_UNICAST = IPv6Network("2000::/3")
# Reserved, but global to some versions of `ipaddress`; there clouds answer their own machines, too.
_RESERVED = tuple(
    map(
        ip_network,
        (
            "192.0.0.0/24",  # of protocols; Oracle's metadata
            "192.88.99.0/24",  # relays of 6to4
            "168.63.129.16/32",  # of every machine in Azure
            "2001::/23",  # of protocols
            "3fff::/20",  # of documentation
        ),
    )
)
_NAT64 = IPv6Network("64:ff9b::/96")
_ISATAP = (0x00005EFE, 0x02005EFE)  # before an IPv4 address at the end


def resolve(host: str, port: int) -> list[str]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise NotDelivered("the name of its host cannot be resolved") from None
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


def refuse_private(addresses: list[str]) -> None:
    """All of them have to be public: else the choice among them would be the receiver's."""
    for address in addresses:
        if not is_public(address):
            reason = f"{address} is of this machine, or of a private or reserved network"
            raise NotDelivered(f"{reason}: refused without allowPrivate")


def is_public(text: str) -> bool:
    try:
        address = ip_address(text)
    except ValueError:
        return False
    return all(map(_is_global, _meant(address))) and not _is_of_this_machine(text, address.version)


def _meant(address: IPv4Address | IPv6Address) -> Iterator[IPv4Address | IPv6Address]:
    """The addresses that packets to this one reach: that of IPv4 inside it, where there is one."""
    if isinstance(address, IPv4Address):
        yield address
        return
    last = IPv4Address(int(address) & 0xFFFFFFFF)
    if address.ipv4_mapped is not None or address in _NAT64:
        yield last
        return
    if address.sixtofour is not None:  # global itself to some versions of `ipaddress` only
        yield address.sixtofour
        return
    yield address
    if int(address) >> 32 & 0xFFFFFFFF in _ISATAP:
        yield last


def _is_global(address: IPv4Address | IPv6Address) -> bool:
    if isinstance(address, IPv6Address) and address not in _GLOBAL_UNICAST:
        return False
    if any(address in network for network in _RESERVED):
        return False
    return address.is_global and not address.is_multicast and not address.is_reserved


def _is_of_this_machine(address: str, version: int) -> bool:
    """A packet to an address of one's own has it as its source, too. Nothing is sent."""
    family = {4: socket.AF_INET, 6: socket.AF_INET6}[version]
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))
            return bool(probe.getsockname()[0] == address)
    except OSError:  # no route there
        return False
