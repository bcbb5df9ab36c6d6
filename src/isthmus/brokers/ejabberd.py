"""ejabberd with `mod_mqtt`, from Debian's package `ejabberd`.

Run directly in an Erlang machine without distribution: no port mapper, no control script, no
other user.
"""

from __future__ import annotations

from pathlib import Path

from isthmus.brokers.base import Broker
from isthmus.brokers.debian import DebianPackages
from isthmus.errors import BrokerMissing
from isthmus.processes.children import Launch, find_executable

__all__ = ["Ejabberd"]

_CONFIGURATION = """\
hosts: [localhost]
loglevel: warning
auth_method: [anonymous]
anonymous_protocol: login_anon
allow_multiple_connections: true
listen:
  -
    port: {port}
    ip: "{host}"
    module: mod_mqtt
    backlog: 1000
modules:
  mod_mqtt: {{}}
"""


def _library_folder() -> Path | None:
    """Where Debian installs it: /usr/lib/ARCHITECTURE/ejabberd-VERSION/ebin."""
    found = sorted(Path("/usr/lib").glob("*/ejabberd-*/ebin/ejabberd.app"))
    return found[-1].parents[2] if found else None


class Ejabberd(Broker):
    """MQTT 3.1.1 and 5; any user name with any password that is not empty."""

    name = "ejabberd"
    protocol_levels = (4, 5)

    def __init__(
        self, *, port: int = 0, username: str | None = "isthmus", password: str | None = "isthmus"
    ) -> None:
        super().__init__(port=port, username=username, password=password)

    @classmethod
    def missing(cls) -> BrokerMissing | None:
        library = _library_folder() or Path("/usr/lib/*/ejabberd-*/ebin")
        return DebianPackages(cls.name, "ejabberd", ["erl"], [library]).missing()

    def configure(self, folder: Path) -> Launch:
        configuration = folder / "ejabberd.yml"
        configuration.write_text(_CONFIGURATION.format(host=self.host, port=self.port))
        log = folder / "log"
        log.mkdir(exist_ok=True)
        return Launch(
            [
                find_executable("erl") or "erl",
                *("-noinput", "+sbwt", "none"),
                *("-mnesia", "dir", f'"{folder / "spool"}"'),
                *("-s", "ejabberd"),
            ],
            env={
                "HOME": str(folder),
                "ERL_LIBS": str(_library_folder()),
                "EJABBERD_CONFIG_PATH": str(configuration),
                "EJABBERD_LOG_PATH": str(log / "ejabberd.log"),
                "ERL_CRASH_DUMP": str(log / "erl_crash.dump"),
            },
            cwd=folder,
        )
