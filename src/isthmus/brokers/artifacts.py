"""Brokers that come from npm or Maven, fetched once into a cache folder.

The cache is `$ISTHMUS_CACHE`, else `$XDG_CACHE_HOME/isthmus/brokers`, else
`~/.cache/isthmus/brokers`; each broker has the folder NAME-VERSION in it.  A folder appears
there whole or not at all: it is filled under a temporary name and renamed.  Where the packages
come from is npm's and Maven's own configuration.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from isthmus.errors import BrokerFailed, BrokerMissing
from isthmus.processes.children import find_executable

__all__ = ["Artifact", "MavenJars", "NpmPackage", "cache_folder", "install_command"]

_REPORT_EVERY_S = 10.0
_TAIL_LINES = 25
_DEPENDENCY_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1"

_POM = """\
<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>isthmus</groupId>
  <artifactId>{broker}-jars</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>{group}</groupId>
      <artifactId>{artifact}</artifactId>
      <version>{version}</version>
    </dependency>
  </dependencies>
</project>
"""


def cache_folder() -> Path:
    """Where fetched brokers are kept."""
    chosen = os.environ.get("ISTHMUS_CACHE")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "isthmus" / "brokers"


def install_command(broker: str) -> str:
    """The command that fetches it."""
    return f"{sys.executable} -m isthmus.brokers install {broker}"


@dataclass(frozen=True, slots=True)
class Artifact(ABC):
    """Something to fetch; its `needs` map the programs that run and fetch it to Debian packages."""

    run_needs: ClassVar[Mapping[str, str]]
    fetch_needs: ClassVar[Mapping[str, str]]
    broker: str
    version: str

    @property
    def folder(self) -> Path:
        """Its place in the cache."""
        return cache_folder() / f"{self.broker}-{self.version}"

    @abstractmethod
    def fill(self, folder: Path) -> None:
        """Put everything into `folder`."""

    def missing(self) -> BrokerMissing | None:
        """What keeps it from being run here."""
        if (lacking := self._lacking(self.run_needs)) is not None:
            return lacking
        if not self.folder.is_dir():
            remedy = f"run: {install_command(self.broker)}"
            return BrokerMissing(self.broker, f"{self.broker} {self.version}", remedy)
        return None

    def install(self, report: Callable[[str], None]) -> None:
        """Fetch it, unless it is there.  Raises BrokerMissing or BrokerFailed."""
        title = f"{self.broker} {self.version}"
        if self.folder.is_dir():
            report(f"{title}: already in {self.folder}")
            return
        if (lacking := self._lacking({**self.run_needs, **self.fetch_needs})) is not None:
            raise lacking
        report(f"{title}: fetching with {next(iter(self.fetch_needs))}")
        began = time.monotonic()
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{self.folder.name}-", dir=self.folder.parent))
        try:
            self.fill(partial)
            partial.chmod(0o755)
            try:
                partial.rename(self.folder)
            except OSError:
                if not self.folder.is_dir():  # otherwise another process was faster
                    raise
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        report(f"{title}: in {self.folder} after {time.monotonic() - began:.0f} s")

    def run(self, argv: Sequence[str], folder: Path) -> None:
        """Run a fetching program in `folder`, with signs of life on standard error."""
        began = time.monotonic()
        with tempfile.TemporaryFile() as output:
            process = subprocess.Popen(
                argv, cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
            try:
                while True:
                    try:
                        status = process.wait(_REPORT_EVERY_S)
                        break
                    except subprocess.TimeoutExpired:
                        spent = time.monotonic() - began
                        print(f"{self.broker}: still fetching, {spent:.0f} s", file=sys.stderr)
            except BaseException:
                process.kill()
                process.wait()
                raise
            if status != 0:
                output.seek(0)
                tail = output.read().decode(errors="replace").splitlines()[-_TAIL_LINES:]
                problem = f"{Path(argv[0]).name} ended with status {status}"
                raise BrokerFailed(self.broker, problem, "\n".join(tail))

    def _lacking(self, needs: Mapping[str, str]) -> BrokerMissing | None:
        for program in needs:
            if find_executable(program) is None:
                packages = " ".join(dict.fromkeys(needs.values()))
                remedy = f"as root: apt-get install -y --no-install-recommends {packages}"
                return BrokerMissing(self.broker, f"the program {program}", remedy)
        return None


@dataclass(frozen=True, slots=True)
class NpmPackage(Artifact):
    """A package of npm's, with its dependencies, in `node_modules`."""

    run_needs: ClassVar = {"node": "nodejs"}
    fetch_needs: ClassVar = {"npm": "npm"}
    package: str

    def fill(self, folder: Path) -> None:
        npm = find_executable("npm") or "npm"
        quiet = ("--no-package-lock", "--no-audit", "--no-fund", "--no-update-notifier")
        self.run(
            [npm, "install", *quiet, "--prefix", str(folder), f"{self.package}@{self.version}"],
            folder,
        )


@dataclass(frozen=True, slots=True)
class MavenJars(Artifact):
    """A Maven artifact and everything it needs at run time, as jars in one folder."""

    run_needs: ClassVar = {"java": "default-jre-headless"}
    fetch_needs: ClassVar = {"mvn": "maven"}
    group: str
    artifact: str

    @property
    def class_path(self) -> str:
        """All the jars, as Java wants them named."""
        return f"{self.folder}/*"

    def fill(self, folder: Path) -> None:
        pom = folder / "pom.xml"
        pom.write_text(
            _POM.format(
                broker=self.broker, group=self.group, artifact=self.artifact, version=self.version
            )
        )
        mvn = find_executable("mvn") or "mvn"
        goal = f"{_DEPENDENCY_PLUGIN}:copy-dependencies"
        quiet = ("--batch-mode", "--no-transfer-progress", "--quiet")
        scope = ("-DincludeScope=runtime", f"-DoutputDirectory={folder}")
        self.run([mvn, *quiet, "--file", str(pom), goal, *scope], folder)
