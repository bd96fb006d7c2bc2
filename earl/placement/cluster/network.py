"""Addresses and interfaces: by which of its names a host is reached by the others."""

import fcntl
import socket
import struct

SIOCGIFADDR = 0x8915
"""Linux's request for the address of an interface."""


def interface_of(host: str) -> str | None:
    """The interface that has an IPv4 address, which gloo and NCCL have to be told; None when there is none."""
    for _, name in socket.if_nameindex():
        if _address(name) == host:
            return name
    return None


def _address(interface: str) -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            packed = fcntl.ioctl(probe.fileno(), SIOCGIFADDR, struct.pack("256s", interface[:15].encode()))
        except OSError:
            return None
    return socket.inet_ntoa(packed[20:24])
