"""The page on topics with a place: its programs and commands print what it says; the example."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

from isthmus.cli.main import main
from isthmus.cooperation.geo import WORLD, Following
from support.examples import EXAMPLES

PAGE = (Path(__file__).parents[4] / "docs" / "howto" / "topics-with-a-place.md").read_text()
PROGRAMS = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", PAGE, re.DOTALL)
COMMANDS = re.findall(r"^\$ isthmus (.*)\n((?:[^$`].*\n)+)", PAGE, re.MULTILINE)


def test_all_of_them_are_found() -> None:
    assert len(PROGRAMS) == PAGE.count("```python") == 5
    assert len(COMMANDS) == PAGE.count("\n$ ") == 2


@pytest.mark.parametrize(("program", "printed"), PROGRAMS)
def test_programs(program: str, printed: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(program, "page", "exec"), {})
    assert capsys.readouterr().out == printed


@pytest.mark.parametrize(("command", "printed"), COMMANDS)
def test_commands(command: str, printed: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(command.split())
    assert capsys.readouterr().out == printed


class Recorder:
    """In place of a client of MQTT."""

    def __init__(self) -> None:
        self.filters: set[str] = set()
        self.calls: list[str] = []

    def subscribe(self, filters: list[tuple[str, int]]) -> None:
        self.calls.append("subscribe")
        self.filters |= {each for each, _ in filters}

    def unsubscribe(self, filters: list[str]) -> None:
        self.calls.append("unsubscribe")
        self.filters -= set(filters)


def example() -> Any:
    pytest.importorskip("paho.mqtt.client")
    spec = importlib.util.spec_from_file_location("example", EXAMPLES / "follow_an_area.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_example_stays_subscribed_to_what_is_around() -> None:
    module, client = example(), Recorder()
    following = Following(WORLD, module.DIGITS, 14, "temperature", slack=0.2)
    for position in module.drive():
        before = len(client.calls)
        module.apply(client, following.follow(position, module.RADIUS_M))
        assert client.calls[before:] in ([], ["subscribe"], ["unsubscribe"]) or client.calls[
            before:
        ] == ["subscribe", "unsubscribe"]
        assert client.filters == set(following.filters)
    assert 5 < client.calls.count("subscribe") < 100
