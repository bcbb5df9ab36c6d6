"""The command line without processes or sockets: arguments, output, exit codes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import isthmus.admin_client
import isthmus.node.runtime
from isthmus import __version__
from isthmus.addresses import Address
from isthmus.cli import main
from isthmus.commands import app
from isthmus.config import NodeConfig
from isthmus.errors import AdminError

GOOD = '[node]\nid = "edge-1"\n[broker]\nurl = "embedded:"\n'
REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "cli.md"


def run(*arguments: object) -> int:
    """Run the command line in this process; its exit code."""
    with pytest.raises(SystemExit) as caught:
        main([str(argument) for argument in arguments])
    code = caught.value.code
    return code if isinstance(code, int) else 0 if code is None else 1


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "node.toml"
    path.write_text(GOOD)
    return path


@pytest.fixture
def bad_file(tmp_path: Path) -> Path:
    path = tmp_path / "bad.toml"
    path.write_text(GOOD + '[listen]\nmqtt = "1883"\nadmn = "a:1"\n')
    return path


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--version") == 0
    assert capsys.readouterr().out == f"isthmus {__version__}\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["nope"],
        ["node"],
        ["check"],
        ["up", "--for", "soon"],
        ["up", "--for", "0"],
        ["status", "--x"],
    ],
)
def test_wrong_usage_exits_2(arguments: list[str]) -> None:
    assert run(*arguments) == 2


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--help") == 0
    out = capsys.readouterr().out
    for command in ("node", "up", "check", "status"):
        assert re.search(rf"\b{command}\b", out)


# ---- check -----------------------------------------------------------------------------------


def test_check_prints_the_values_in_effect(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("check", file) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"ok: {file} is the node 'edge-1'"
    assert 'listen.mqtt = "127.0.0.1:1883"' in lines
    assert "listen.admin = (not set)" in lines
    assert "limits.drain_s = 4.0" in lines


def test_check_prints_one_line_per_mistake(
    bad_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("check", bad_file) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    first, second = captured.err.splitlines()
    assert first.startswith(f"{bad_file}:6: listen.mqtt: ")
    assert second == f"{bad_file}:7: listen.admn: unknown key; did you mean 'admin'?"


def test_check_recognises_a_fabric(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "fabric.toml"
    path.write_text('[[node]]\nid = "a"\n[[node]]\nid = "b"\nbroker = "embedded"\n')
    assert run("check", path) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"ok: {path} is a fabric of 2 node(s)"
    assert 'node[1].broker = "embedded"' in lines


def test_check_of_a_missing_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("check", tmp_path / "none.toml") == 2
    assert "cannot be read: No such file" in capsys.readouterr().err


# ---- node ------------------------------------------------------------------------------------


@pytest.mark.parametrize("extra", [[], ["--"]])  # straight, and through the command library
def test_node_runs_the_node_and_passes_its_code_on(
    file: Path, extra: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[NodeConfig] = []

    def fake(config: NodeConfig) -> int:
        seen.append(config)
        return 7

    monkeypatch.setattr(isthmus.node.runtime, "run", fake)
    assert run("node", *extra, file) == 7
    assert [config.node.id for config in seen] == ["edge-1"]


@pytest.mark.parametrize("extra", [[], ["--"]])
def test_node_with_a_wrong_file_exits_2(
    bad_file: Path, extra: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("node", *extra, bad_file) == 2
    assert len(capsys.readouterr().err.splitlines()) == 2


def test_a_taken_address_exits_1_and_is_named(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fake(config: NodeConfig) -> int:
        raise OSError(98, "[listen] mqtt = 127.0.0.1:1883: address already in use")

    monkeypatch.setattr(isthmus.node.runtime, "run", fake)
    assert run("node", file) == 1
    error = capsys.readouterr().err
    assert error == f"isthmus: {file}: [listen] mqtt = 127.0.0.1:1883: address already in use\n"


# ---- status ----------------------------------------------------------------------------------

STATUS: dict[str, Any] = {
    "node": {"id": "edge-1", "pid": 123456},
    "sessions": {
        "open": 12345,
        "clients": [{"client_id": "[red]x\x1b[2J", "peer": "127.0.0.1:5", "will_topic": None}],
    },
    "refusals": {},
}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Address]:
    addresses: list[Address] = []

    def fake(address: Address) -> dict[str, Any]:
        addresses.append(address)
        return STATUS

    monkeypatch.setattr(isthmus.admin_client, "fetch_status", fake)
    return addresses


def test_status_as_json(asked: list[Address], capsys: pytest.CaptureFixture[str]) -> None:
    assert run("status", "--json", "--admin", "10.0.0.1:5") == 0
    assert json.loads(capsys.readouterr().out) == STATUS
    assert asked == [Address("10.0.0.1", 5)]


def test_status_as_tables(asked: list[Address], capsys: pytest.CaptureFixture[str]) -> None:
    assert run("status") == 0
    out = capsys.readouterr().out
    assert asked == [Address("127.0.0.1", 9883)]
    assert "edge-1" in out
    assert "123456" in out
    assert "12,345" in out
    assert "[red]x\N{REPLACEMENT CHARACTER}[2J" in out
    assert "will_topic" not in out
    assert "refusals" not in out


def test_status_of_a_file(asked: list[Address], file: Path) -> None:
    file.write_text(GOOD + '[listen]\nadmin = "127.0.0.1:4000"\n')
    assert run("status", file) == 0
    assert asked == [Address("127.0.0.1", 4000)]


@pytest.mark.parametrize("admin", ["", '[listen]\nadmin = "127.0.0.1:0"\n'])
def test_status_of_a_file_without_an_admin_port(
    asked: list[Address], file: Path, admin: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(GOOD + admin)
    assert run("status", file) == 2
    assert asked == []
    assert "--admin" in capsys.readouterr().err


def test_status_wants_one_address(asked: list[Address], file: Path) -> None:
    assert run("status", file, "--admin", "a:1") == 2
    assert run("status", "--admin", ":1") == 2
    assert asked == []


def test_status_of_nobody_exits_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fake(address: Address) -> dict[str, Any]:
        raise AdminError(f"no node answers on http://{address}/api/status")

    monkeypatch.setattr(isthmus.admin_client, "fetch_status", fake)
    assert run("status") == 1
    assert capsys.readouterr().err.startswith("isthmus: no node answers on http://127.0.0.1:9883/")


# ---- documentation ---------------------------------------------------------------------------


def test_every_command_and_option_is_documented() -> None:
    import typer.main

    text = REFERENCE.read_text()
    group = typer.main.get_command(app)
    commands = getattr(group, "commands", {})
    assert set(commands) >= {"node", "up", "check", "status"}
    for name, command in commands.items():
        section = text.partition(f"\n## `isthmus {name}")[2].partition("\n## ")[0]
        assert section, name
        for parameter in command.params:
            for option in (o for o in parameter.opts if o.startswith("--") and o != "--help"):
                assert option in section, f"{name} {option}"
