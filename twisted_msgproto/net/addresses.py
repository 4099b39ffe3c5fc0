"""Group addresses by who may have them: failures, lines of the log and places count for a group."""

from __future__ import annotations

from ipaddress import IPv6Address, ip_address


def network_of(address: str) -> str | None:
    """Return whose address it is: an IPv4 address, or an IPv6 network of 64 bits.

    Returns None for addresses that stand for many: this machine's, and none (UNIX sockets).
    """
    try:
        ip = ip_address(address.partition("%")[0])
    except ValueError:
        return None
    if isinstance(ip, IPv6Address) and ip.ipv4_mapped is not None:
        ip = ip.ipv4_mapped
    if ip.is_loopback:
        return None
    if isinstance(ip, IPv6Address):
        return f"{IPv6Address(int(ip) >> 64 << 64)}/64"
    return str(ip)


def is_address(host: str) -> bool:
    """Return whether this text is an IP address, and nothing that would spoil a log."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return host.isprintable()  # the zone of an IPv6 address may be anything
