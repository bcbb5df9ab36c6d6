"""HiveMQ Community Edition, from Maven Central.

It refuses every client unless an extension decides who may connect, and the one that its
distribution brings along is not on Maven Central.  So the dozen lines of Java that let
everybody in are compiled when it is installed, and stand beside its jars as an extension.
"""

from __future__ import annotations

import shutil
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from isthmus.brokers.artifacts import MavenJars
from isthmus.brokers.base import Broker
from isthmus.processes.children import Launch, find_executable

__all__ = ["ARTIFACT", "HiveMQ"]

_EXTENSION = "allow-all"

_EXTENSION_SOURCE = """\
package isthmus;

import com.hivemq.extension.sdk.api.ExtensionMain;
import com.hivemq.extension.sdk.api.auth.SimpleAuthenticator;
import com.hivemq.extension.sdk.api.parameter.*;
import com.hivemq.extension.sdk.api.services.Services;

public class AllowAll implements ExtensionMain {
    public void extensionStart(ExtensionStartInput input, ExtensionStartOutput output) {
        SimpleAuthenticator everybody = (in, out) -> out.authenticateSuccessfully();
        Services.securityRegistry().setAuthenticatorProvider(in -> everybody);
    }
    public void extensionStop(ExtensionStopInput input, ExtensionStopOutput output) {}
}
"""

_EXTENSION_MANIFEST = f"""\
<hivemq-extension>
  <id>{_EXTENSION}</id>
  <name>Everybody may connect</name>
  <version>1</version>
  <priority>1000</priority>
  <author>Isthmus</author>
</hivemq-extension>
"""

_CONFIGURATION = """\
<hivemq>
  <listeners>
    <tcp-listener><port>{port}</port><bind-address>{host}</bind-address></tcp-listener>
  </listeners>
  <anonymous-usage-statistics><enabled>false</enabled></anonymous-usage-statistics>
</hivemq>
"""

_LOGGING = """\
<configuration>
  <appender name="console" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%-5level %msg%n%ex</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="console"/></root>
</configuration>
"""

# What its own start script opens to the libraries it uses.
_JAVA_OPTIONS = (
    "-Xmx512m",
    "-Djava.net.preferIPv4Stack=true",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=jdk.management/com.sun.management.internal=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.misc=ALL-UNNAMED",
)


@dataclass(frozen=True, slots=True)
class _HiveMQJars(MavenJars):
    fetch_needs: ClassVar = {"mvn": "maven", "javac": "default-jdk-headless"}

    @property
    def extension_folder(self) -> Path:
        return self.folder / "extensions" / _EXTENSION

    def fill(self, folder: Path) -> None:
        # Not super(): a slotted dataclass is a new class, which zero-argument super() misses.
        MavenJars.fill(self, folder)
        extension = folder / "extensions" / _EXTENSION
        build = folder / "build"
        build.mkdir()
        extension.mkdir(parents=True)
        (build / "AllowAll.java").write_text(_EXTENSION_SOURCE)
        javac = find_executable("javac") or "javac"
        options = ("--release", "11", "-proc:none", "-cp", f"{folder}/*", "-d", str(build))
        self.run([javac, *options, str(build / "AllowAll.java")], folder)
        with zipfile.ZipFile(extension / f"{_EXTENSION}.jar", "w") as jar:
            jar.writestr(
                "META-INF/services/com.hivemq.extension.sdk.api.ExtensionMain", "isthmus.AllowAll"
            )
            for compiled in sorted(build.rglob("*.class")):
                jar.write(compiled, str(compiled.relative_to(build)))
        (extension / "hivemq-extension.xml").write_text(_EXTENSION_MANIFEST)
        shutil.rmtree(build)


ARTIFACT = _HiveMQJars(
    broker="hivemq",
    version="2025.5",
    group="com.hivemq",
    artifact="hivemq-community-edition-embedded",
)


class HiveMQ(Broker):
    """MQTT 3.1.1 and 5; sessions and retained messages in its folder."""

    name = "hivemq"
    needs = ARTIFACT
    protocol_levels = (4, 5)
    start_timeout_s = 90.0
    stop_timeout_s = 1.0  # its own shutdown takes 4 s; its data are removed anyway

    def configure(self, folder: Path) -> Launch:
        for name in ("conf", "data", "log", "extensions", "tmp"):
            (folder / name).mkdir(exist_ok=True)
        (folder / "conf" / "config.xml").write_text(
            _CONFIGURATION.format(host=self.host, port=self.port)
        )
        (folder / "conf" / "logback.xml").write_text(_LOGGING)
        # A copy: it writes into the folders of its extensions.
        extension = folder / "extensions" / _EXTENSION
        if not extension.exists():
            shutil.copytree(ARTIFACT.extension_folder, extension)
        return Launch(
            [
                find_executable("java") or "java",
                *_JAVA_OPTIONS,
                *self.java_options,
                f"-Dhivemq.home={folder}",
                f"-Djava.io.tmpdir={folder / 'tmp'}",
                *("-cp", ARTIFACT.class_path, "com.hivemq.HiveMQServer"),
            ],
            cwd=folder,
        )
