"""RabbitMQ with its MQTT plug-in, from Debian's package `rabbitmq-server`.

Its start script is called directly, as the current user, with every file it would otherwise
look for in the system's folders pointed into the temporary folder.  Erlang's port mapper
(epmd), which RabbitMQ would leave behind as a daemon, is started here as a process of our own
on a port of its own.
"""

from __future__ import annotations

import socket
import time
from pathlib import Path

from isthmus.brokers.base import Broker
from isthmus.brokers.debian import DebianPackages
from isthmus.errors import BrokerFailed
from isthmus.processes.children import Launch, find_executable
from isthmus.processes.ports import free_port

__all__ = ["RabbitMQ"]

_SCRIPT = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
_EPMD_TIMEOUT_S = 10.0


class RabbitMQ(Broker):
    """MQTT 3.1.1; anonymous clients act as its user `guest`."""

    name = "rabbitmq"
    needs = DebianPackages(name, "rabbitmq-server", ["erl", "epmd"], [_SCRIPT])
    protocol_levels = (4,)
    start_timeout_s = 120.0
    stop_timeout_s = 20.0

    _epmd_port = 0
    _distribution_port = 0

    def __init__(
        self,
        *,
        port: int = 0,
        username: str | None = None,
        password: str | None = None,
        amqp: bool = False,
    ) -> None:
        """With `amqp` it also speaks AMQP 0-9-1, on `amqp_port`."""
        super().__init__(port=port, username=username, password=password)
        self.amqp = amqp
        self.amqp_port = 0

    def choose_ports(self) -> None:
        super().choose_ports()
        if self.amqp:
            self.amqp_port = free_port(self.host)

    def companions(self, folder: Path) -> tuple[Launch, ...]:
        self._epmd_port = free_port(self.host)
        self._distribution_port = free_port(self.host)
        epmd = find_executable("epmd") or "epmd"
        return (Launch([epmd, "-port", str(self._epmd_port), "-address", self.host]),)

    def configure(self, folder: Path) -> Launch:
        settings = {
            # No AMQP, unless it is asked for.
            **(
                {"listeners.tcp.1": f"{self.host}:{self.amqp_port}"}
                if self.amqp
                else {"listeners.tcp": "none"}
            ),
            "mqtt.listeners.tcp.1": self.address,
            "mqtt.allow_anonymous": "true",
            "mqtt.default_user": "guest",
            "mqtt.default_pass": "guest",
            "loopback_users": "none",
            "log.console": "true",
            "log.console.level": "warning",
            "log.file": "false",
        }
        lines = [f"{key} = {value}" for key, value in settings.items()]
        (folder / "rabbitmq.conf").write_text("\n".join(lines) + "\n")
        (folder / "enabled_plugins").write_text("[rabbitmq_mqtt].\n")
        self._await_epmd()
        return Launch([str(_SCRIPT)], env=self._environment(folder), cwd=folder)

    def _await_epmd(self) -> None:
        """Wait until epmd listens: if RabbitMQ found none, it would start one as a daemon."""
        deadline = time.monotonic() + _EPMD_TIMEOUT_S
        while time.monotonic() < deadline:
            try:
                socket.create_connection((self.host, self._epmd_port), timeout=1).close()
                return
            except OSError:
                time.sleep(0.005)
        problem = f"epmd does not listen on port {self._epmd_port}"
        raise BrokerFailed(self.name, problem, self.log_tail())

    def _environment(self, folder: Path) -> dict[str, str]:
        return {
            "HOME": str(folder),  # where Erlang keeps its cookie
            # Makes the script become the broker; otherwise it stays in between as a shell,
            # and the broker would survive us.
            "RUNNING_UNDER_SYSTEMD": "true",
            "ERL_EPMD_PORT": str(self._epmd_port),
            "ERL_EPMD_ADDRESS": self.host,
            "RABBITMQ_NODENAME": f"isthmus{self.port}@localhost",
            "RABBITMQ_DIST_PORT": str(self._distribution_port),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            "RABBITMQ_CONF_ENV_FILE": str(folder / "rabbitmq-env.conf"),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(folder / "advanced.config"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
            "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_GENERATED_CONFIG_DIR": str(folder / "generated"),
            "RABBITMQ_PID_FILE": str(folder / "rabbitmq.pid"),
        }
