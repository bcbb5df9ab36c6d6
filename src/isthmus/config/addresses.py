"""Where things listen and where a broker is: two small values and how they are written.

Both print as they are read, so that a message or a status page can be pasted into a file.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

__all__ = ["Address", "BrokerUrl"]

DEFAULT_PORTS = {"mqtt": 1883, "mqtts": 8883}


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen or connect.  Port 0 asks the system for any free port."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read ``host:port`` or ``[ipv6]:port``; `ValueError` says what would be right."""
        host, colon, port = text.rpartition(":")
        if not colon:
            raise ValueError(f'{text!r} has no port; write "host:port", like "127.0.0.1:1883"')
        if not host:
            raise ValueError(
                f'{text!r} names no host; write "127.0.0.1:{port}" for this machine only '
                f'or "0.0.0.0:{port}" for every IPv4 address'
            )
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        elif ":" in host:
            raise ValueError(f'{text!r}: write an IPv6 address in brackets, like "[::1]:1883"')
        if not re.fullmatch(r"[A-Za-z0-9._:%-]+", host):
            raise ValueError(f"{text!r}: {host!r} is neither a host name nor an IP address")
        if not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > 65535:
            raise ValueError(f"{text!r}: {port!r} is not a port; a port is 0 (any free) to 65535")
        return cls(host, int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class BrokerUrl:
    """The broker behind a node: a reachable one, or one that the node starts itself."""

    scheme: Literal["mqtt", "mqtts", "embedded"]
    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> BrokerUrl:
        """Read ``mqtt://host[:port]``, ``mqtts://host[:port]`` or ``embedded:``."""
        right = 'write "mqtt://host:port", "mqtts://host:port" or "embedded:"'
        if text == "embedded:":
            return cls("embedded", "127.0.0.1", 0)
        try:
            parts = urlsplit(text)
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise ValueError(f"{text!r}: {error}; {right}") from None
        if parts.scheme not in ("mqtt", "mqtts") or not host:
            raise ValueError(f"{text!r} is not a broker's address; {right}")
        if parts.username is not None or parts.password is not None:
            raise ValueError(
                f"{parts.scheme}://…@{host} holds a user name or password; leave them out, "
                "clients present their own to the broker; for the node's own sessions set "
                "broker.username and broker.password_file"
            )
        if parts.path not in ("", "/") or parts.query or parts.fragment:
            raise ValueError(f"{text!r} goes on after the port; {right}")
        if port == 0:
            raise ValueError(f"{text!r}: the broker's port cannot be 0; {right}")
        scheme: Literal["mqtt", "mqtts"] = "mqtts" if parts.scheme == "mqtts" else "mqtt"
        return cls(scheme, host, port if port is not None else DEFAULT_PORTS[scheme])

    def __str__(self) -> str:
        if self.scheme == "embedded":
            return "embedded:"
        return f"{self.scheme}://{Address(self.host, self.port)}"
