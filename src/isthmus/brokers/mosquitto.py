"""Eclipse Mosquitto, from Debian's package `mosquitto`.

Beside the plain listener, which is always there and answers the start-up probe, a TLS
listener can be asked for::

    Mosquitto(tls=TlsListener(cert=…, key=…, ca=…, require_certificate=True))  # tls_port
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from isthmus.brokers.base import Broker
from isthmus.brokers.debian import DebianPackages
from isthmus.processes.children import Launch, find_executable
from isthmus.processes.ports import free_port

__all__ = ["Mosquitto", "TlsListener"]


@dataclass(frozen=True, slots=True)
class TlsListener:
    """The files of a TLS listener; `ca` signs the client certificates it accepts."""

    cert: Path
    key: Path
    ca: Path | None = None
    require_certificate: bool = False

    def lines(self, host: str, port: int) -> list[str]:
        """The listener's part of the configuration file."""
        lines = [f"listener {port} {host}", f"certfile {self.cert}", f"keyfile {self.key}"]
        if self.ca is not None:
            lines.append(f"cafile {self.ca}")
        lines.append(f"require_certificate {str(self.require_certificate).lower()}")
        return lines


class Mosquitto(Broker):
    """`extra` are configuration lines as they stand in mosquitto.conf.

    Lines that belong to the plain listener (`max_connections` …) apply to it; general ones
    (`max_packet_size`, `password_file`, `allow_anonymous` …) to the whole broker.  With
    `persistence` retained messages and sessions survive stop-free restarts.
    """

    name = "mosquitto"
    needs = DebianPackages(name, "mosquitto", ["mosquitto"])
    protocol_levels = (4, 5)
    start_timeout_s = 10.0

    def __init__(
        self,
        *,
        port: int = 0,
        username: str | None = None,
        password: str | None = None,
        extra: Sequence[str] = (),
        allow_anonymous: bool = True,
        persistence: bool = False,
        tls: TlsListener | None = None,
    ) -> None:
        super().__init__(port=port, username=username, password=password)
        self.extra = tuple(extra)
        self.allow_anonymous = allow_anonymous
        self.persistence = persistence
        self.tls = tls
        self.tls_port = 0  # chosen by the first start, when there is a TLS listener

    def choose_ports(self) -> None:
        super().choose_ports()
        if self.tls is not None:
            self.tls_port = free_port(self.host)

    def configure(self, folder: Path) -> Launch:
        lines = [
            # It would otherwise become another user, who cannot read the folder and whom the
            # kernel would not kill with us.
            "user root",
            f"allow_anonymous {str(self.allow_anonymous).lower()}",
            f"persistence {str(self.persistence).lower()}",
            f"persistence_location {folder}/",
            "log_type error",
            "log_type warning",
            "log_type notice",
            "connection_messages false",
            f"listener {self.port} {self.host}",
            *self.extra,
        ]
        if self.persistence:
            lines.insert(0, "autosave_on_changes true")
            lines.insert(0, "autosave_interval 1")
        if self.tls is not None:
            if self.tls_port == 0:
                self.tls_port = free_port(self.host)
            lines += self.tls.lines(self.host, self.tls_port)
        path = folder / "mosquitto.conf"
        path.write_text("\n".join(lines) + "\n")
        return Launch([find_executable("mosquitto") or "mosquitto", "-c", str(path)])
