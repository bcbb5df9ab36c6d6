"""Moquette, a broker in Java, from Maven Central.

Version 0.17 is the newest one published there; it refuses MQTT 5 with return code 1.
"""

from __future__ import annotations

from pathlib import Path

from isthmus.brokers.artifacts import MavenJars
from isthmus.brokers.base import Broker
from isthmus.processes.children import Launch, find_executable

__all__ = ["ARTIFACT", "Moquette"]

ARTIFACT = MavenJars(
    broker="moquette", version="0.17", group="io.moquette", artifact="moquette-broker"
)

_CONFIGURATION = """\
host {host}
port {port}
allow_anonymous true
allow_zero_byte_client_id true
data_path {folder}/data
persistence_enabled true
persistent_queue_type h2
telemetry_enabled false
"""

_LOGGING = """\
log4j.rootLogger=WARN, console
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.layout=org.apache.log4j.PatternLayout
log4j.appender.console.layout.ConversionPattern=%-5p %c: %m%n
"""


class Moquette(Broker):
    """MQTT 3.1.1; sessions and retained messages in its folder."""

    name = "moquette"
    needs = ARTIFACT
    protocol_levels = (4,)
    stop_timeout_s = 1.0  # its own shutdown takes 2 s; its data are removed anyway

    def configure(self, folder: Path) -> Launch:
        (folder / "config").mkdir(exist_ok=True)
        (folder / "data").mkdir(exist_ok=True)
        (folder / "config" / "moquette.conf").write_text(
            _CONFIGURATION.format(host=self.host, port=self.port, folder=folder)
        )
        (folder / "log4j.properties").write_text(_LOGGING)
        return Launch(
            [
                find_executable("java") or "java",
                "-Xmx256m",
                *self.java_options,
                f"-Dmoquette.path={folder}",
                f"-Djava.io.tmpdir={folder}",
                f"-Dlog4j.configuration=file:{folder / 'log4j.properties'}",
                *("-cp", ARTIFACT.class_path, "io.moquette.broker.Server"),
            ],
            cwd=folder,
        )
