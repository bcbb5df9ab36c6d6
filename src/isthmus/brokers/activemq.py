"""Apache ActiveMQ with its MQTT connector, from Debian's packages.

Debian's `activemq` lacks a dependency: without `libmqtt-client-java` every MQTT connection
fails with NoClassDefFoundError, and the jars are not on its class path either.
"""

from __future__ import annotations

from pathlib import Path

from isthmus.brokers.base import Broker
from isthmus.brokers.debian import DebianPackages
from isthmus.processes.children import Launch, find_executable
from isthmus.processes.ports import free_port

__all__ = ["ActiveMQ"]

_JAR = Path("/usr/share/activemq/bin/activemq.jar")
_EXTRA_JARS = tuple(
    Path("/usr/share/java") / f"{name}.jar"
    for name in ("mqtt-client", "hawtdispatch", "hawtdispatch-transport", "hawtbuf")
)

_CONFIGURATION = """\
<beans xmlns="http://www.springframework.org/schema/beans"
       xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"
       xsi:schemaLocation="http://www.springframework.org/schema/beans
                           http://www.springframework.org/schema/beans/spring-beans.xsd
                           http://activemq.apache.org/schema/core
                           http://activemq.apache.org/schema/core/activemq-core.xsd">
  <broker xmlns="http://activemq.apache.org/schema/core" brokerName="isthmus"
          dataDirectory="{folder}/data" useJmx="false" useShutdownHook="true"
          schedulePeriodForDestinationPurge="0">
    <persistenceAdapter><kahaDB directory="{folder}/data/kahadb"/></persistenceAdapter>
    <transportConnectors>
      <transportConnector name="mqtt"
          uri="mqtt://{host}:{port}?wireFormat.maxFrameSize=104857600"/>
      {stomp}
    </transportConnectors>
  </broker>
</beans>
"""

_STOMP = '<transportConnector name="stomp" uri="stomp://{host}:{port}"/>'

_LOGGING = """\
log4j.rootLogger=WARN, console
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.layout=org.apache.log4j.PatternLayout
log4j.appender.console.layout.ConversionPattern=%-5p %c: %m%n
"""


class ActiveMQ(Broker):
    """MQTT 3.1.1."""

    name = "activemq"
    needs = DebianPackages(name, "activemq libmqtt-client-java", ["java"], [_JAR, *_EXTRA_JARS])
    protocol_levels = (4,)
    start_timeout_s = 90.0

    def __init__(
        self,
        *,
        port: int = 0,
        username: str | None = None,
        password: str | None = None,
        stomp: bool = False,
    ) -> None:
        """With `stomp` it also speaks STOMP, on `stomp_port`."""
        super().__init__(port=port, username=username, password=password)
        self.stomp = stomp
        self.stomp_port = 0

    def choose_ports(self) -> None:
        super().choose_ports()
        if self.stomp:
            self.stomp_port = free_port(self.host)

    def configure(self, folder: Path) -> Launch:
        configuration = folder / "activemq.xml"
        stomp = _STOMP.format(host=self.host, port=self.stomp_port) if self.stomp else ""
        configuration.write_text(
            _CONFIGURATION.format(folder=folder, host=self.host, port=self.port, stomp=stomp)
        )
        (folder / "log4j.properties").write_text(_LOGGING)
        extra = folder / "ext"
        extra.mkdir(exist_ok=True)
        for jar in _EXTRA_JARS:
            link = extra / jar.name
            if not link.exists():
                link.symlink_to(jar)
        return Launch(
            [
                find_executable("java") or "java",
                "-Xmx256m",
                *self.java_options,
                f"-Dactivemq.home={_JAR.parents[1]}",
                f"-Dactivemq.base={folder}",
                f"-Dactivemq.conf={folder}",
                f"-Dactivemq.data={folder / 'data'}",
                f"-Djava.io.tmpdir={folder}",
                f"-Dlog4j.configuration=file:{folder / 'log4j.properties'}",
                *("-jar", str(_JAR)),
                *("--extdir", str(extra)),
                *("start", f"xbean:file:{configuration}"),
            ],
            cwd=folder,
        )
