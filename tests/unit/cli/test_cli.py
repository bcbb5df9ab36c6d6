"""The command line without processes or sockets: arguments, output, exit codes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import isthmus.fabric.admin_client
import isthmus.node.runtime
from isthmus import __version__
from isthmus.cli.commands import app
from isthmus.cli.main import main
from isthmus.config.addresses import Address
from isthmus.config.files import NodeConfig
from isthmus.errors import AdminError, ConfigError, ConfigMistake

GOOD = '[node]\nid = "edge-1"\n[broker]\nurl = "embedded:"\n'
REFERENCE = Path(__file__).parents[3] / "docs" / "reference" / "cli.md"


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
        ["peers", "nope"],
        ["peers", "add"],
        ["peers", "add", "h:1", "--qos", "3"],
        ["peers", "add", "h:1", "--lanes", "0"],
        ["peers", "remove"],
    ],
)
def test_wrong_usage_exits_2(arguments: list[str]) -> None:
    assert run(*arguments) == 2


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--help") == 0
    out = capsys.readouterr().out
    for command in ("node", "up", "check", "status", "peers", "geo"):
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


@pytest.mark.parametrize("head", [GOOD, '[[node]]\nid = "edge-1"\n'], ids=["node", "fabric"])
def test_check_lets_the_algorithm_judge_its_own_keys(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], head: str
) -> None:
    path = tmp_path / "options.toml"
    path.write_text(head + '[cooperation]\nalgorithm = "sf"\nspeed = 3\n')
    assert run("check", path) == 2
    said = capsys.readouterr().err
    assert f"{path}:{path.read_text().splitlines().index('speed = 3') + 1}" in said
    assert "cooperation.speed" in said
    assert "no such option" in said


def test_check_recognizes_a_fabric(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "fabric.toml"
    path.write_text('[[node]]\nid = "a"\n[[node]]\nid = "b"\nbroker = "embedded"\n')
    assert run("check", path) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"ok: {path} is a fabric of 2 node(s)"
    assert 'node[1].broker = "embedded"' in lines


def test_check_says_where_links_form_a_ring_and_what_they_do_not_join(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "fabric.toml"
    path.write_text(
        '[[node]]\nid = "a"\npeers = ["b", "c"]\n[[node]]\nid = "b"\npeers = ["c"]\n'
        '[[node]]\nid = "c"\n[[node]]\nid = "d"\n'
    )
    assert run("check", path) == 0
    notes = [line for line in capsys.readouterr().out.splitlines() if line.startswith("note: ")]
    assert len(notes) == 2
    assert "the links b - a - c - b form a ring" in notes[0]
    assert "a, b, c; d" in notes[1]


def test_check_hides_secrets(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(
        GOOD.replace("embedded:", "mqtt://h")
        + 'username = "u"\npassword = "hunter2"\n[link]\nsecret = "0123456789abcdef"\n'
    )
    assert run("check", file) == 0
    out = capsys.readouterr().out
    assert 'link.secret = "(hidden)"' in out
    assert 'broker.password = "(hidden)"' in out
    assert "hunter2" not in out
    assert "0123456789abcdef" not in out


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


def test_what_only_the_algorithm_can_judge_has_file_and_line_too(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fake(config: NodeConfig) -> int:
        raise ConfigError([ConfigMistake("", "cooperation.depth", "no such option")])

    file.write_text(GOOD + "[cooperation]\ndepth = 3\n")
    monkeypatch.setattr(isthmus.node.runtime, "run", fake)
    assert run("node", file) == 2
    assert capsys.readouterr().err == f"{file}:6: cooperation.depth: no such option\n"


# ---- status ----------------------------------------------------------------------------------

STATUS: dict[str, Any] = {
    "node": {"id": "edge-1", "pid": 123456},
    "sessions": {
        "open": 12345,
        "clients": [{"client_id": "[red]x\x1b[2J", "remote": "127.0.0.1:5", "will_topic": None}],
    },
    "refusals": {},
}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Address]:
    addresses: list[Address] = []

    def fake(address: Address) -> dict[str, Any]:
        addresses.append(address)
        return STATUS

    monkeypatch.setattr(isthmus.fabric.admin_client, "fetch_status", fake)
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

    monkeypatch.setattr(isthmus.fabric.admin_client, "fetch_status", fake)
    assert run("status") == 1
    assert capsys.readouterr().err.startswith("isthmus: no node answers on http://127.0.0.1:9883/")


# ---- peers -----------------------------------------------------------------------------------

ROW: dict[str, Any] = {
    "neighbor": "edge-2",
    "address": "127.0.0.1:7002",
    "state": "active",
    "why": "",
    "lanes": 1,
    "qos": 1,
    "sent": 12345,
    "dropped": 6,
    "unacknowledged": 7,
}
BLOCKED = {
    **ROW,
    "neighbor": "edge-3",
    "address": None,
    "state": "blocked",
    "why": "closes the ring edge-1 - edge-2 - edge-3 - edge-1",
}
DIALING = {
    **dict.fromkeys(ROW),
    "address": "127.0.0.1:7009",
    "state": "dialing",
    "why": "[red]no\x1b[2J",
}
RINGS = [{"cut": ["edge-1", "edge-3"], "ring": ["edge-1", "edge-2", "edge-3"]}]


class Peers:
    """A node's answers to `isthmus peers`, and what it was asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rows: list[dict[str, Any]] = []
        self.rings: list[dict[str, Any]] = []
        self.asked: list[tuple[str, str, object]] = []
        self.refusal: tuple[int, bytes] | None = None
        monkeypatch.setattr(isthmus.fabric.admin_client, "ask", self.ask)

    def ask(
        self,
        address: Address,
        path: str,
        timeout_s: float = 5.0,
        *,
        method: str = "GET",
        content: object = None,
    ) -> tuple[int, bytes]:
        if method == "GET":
            return 200, json.dumps({"peers": self.rows, "rings": self.rings}).encode()
        self.asked.append((method, path, content))
        return self.refusal or (200, b"{}")


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> Peers:
    return Peers(monkeypatch)


def test_peers_list(peers: Peers, capsys: pytest.CaptureFixture[str]) -> None:
    peers.rows, peers.rings = [ROW, BLOCKED, DIALING], RINGS
    assert run("peers", "list") == 0
    lines = capsys.readouterr().out.splitlines()
    expected = ["edge-2", "127.0.0.1:7002", "active", "1", "1", "12,345", "6", "7"]
    assert lines[1].split() == expected
    assert lines[2].split()[:3] == ["edge-3", "-", "blocked"]
    text = "\n".join(lines)
    assert "edge-3 is blocked: closes the ring edge-1 - edge-2 - edge-3 - edge-1" in text
    assert "127.0.0.1:7009 is dialing: [red]no\N{REPLACEMENT CHARACTER}[2J" in text
    assert "The link edge-1 - edge-3 is blocked" in text
    assert "on edge-1, `isthmus peers remove edge-3`" in text


def test_peers_list_of_a_node_alone(peers: Peers, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("peers", "list") == 0
    assert capsys.readouterr().out == "No neighbors.\n"


def test_peers_list_as_json(peers: Peers, capsys: pytest.CaptureFixture[str]) -> None:
    peers.rows = [ROW]
    assert run("peers", "list", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"peers": [ROW], "rings": []}


def test_peers_add(peers: Peers, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(GOOD + '[listen]\nadmin = "127.0.0.1:4000"\n')
    peers.rows = [DIALING, ROW]
    assert run("peers", "add", "127.0.0.1:7002", file, "--lanes", 2, "--qos", 0) == 0
    wanted = {"address": "127.0.0.1:7002", "lanes": 2, "qos": 0}
    assert peers.asked == [("POST", "/api/peers", wanted)]
    assert capsys.readouterr().out == "edge-2 is active\n"


def test_the_old_name_of_lanes_is_refused_with_the_new_one(
    peers: Peers, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("peers", "add", "127.0.0.1:7002", "--sessions", 2) == 2
    assert peers.asked == []
    assert "is called --lanes now" in capsys.readouterr().err


def test_peers_add_of_one_that_does_not_answer(
    peers: Peers, capsys: pytest.CaptureFixture[str]
) -> None:
    peers.rows = [DIALING]
    assert run("peers", "add", "127.0.0.1:7009", "--wait", 0) == 0
    assert peers.asked == [("POST", "/api/peers", {"address": "127.0.0.1:7009"})]
    assert "keeps trying" in capsys.readouterr().out


def test_peers_add_that_closes_a_ring(peers: Peers, capsys: pytest.CaptureFixture[str]) -> None:
    peers.rows, peers.rings = [{**BLOCKED, "address": "127.0.0.1:7003"}], RINGS
    assert run("peers", "add", "127.0.0.1:7003") == 0
    out = capsys.readouterr().out
    assert "edge-3 is blocked" in out
    assert "isthmus peers remove edge-3" in out


def test_peers_remove(peers: Peers) -> None:
    assert run("peers", "remove", "[::1]:7/x") == 0
    assert peers.asked == [("DELETE", "/api/peers/%5B%3A%3A1%5D%3A7%2Fx", None)]


@pytest.mark.parametrize(
    ("refusal", "words"),
    [
        ((404, b'{"problems": ["no such", "at all"]}'), "isthmus: no such; at all\n"),
        ((500, b"internal error"), "answered 500\n"),
    ],
)
def test_what_a_node_objects_to_exits_1(
    peers: Peers, refusal: tuple[int, bytes], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    peers.refusal = refusal
    assert run("peers", "remove", "edge-9") == 1
    assert capsys.readouterr().err.endswith(words)


def test_status_shows_the_fabric(
    asked: list[Address], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    link = {**ROW, "status": "active"}
    fabric = {
        "algorithm": {"name": "sf", "local": {"filters": 1234, "synchronizing": False}},
        "links": [link],
        "peers": [],
        "topology": {
            "nodes": ["edge-1", "edge-2", "edge-3"],
            "paths": {"edge-3": ["edge-1", "edge-2", "edge-3"]},
            "rings": [],
            "duplicates": {"edge-2": ["a", "b"]},
        },
        "retained": {"topics": 4321, "bytes": 5},
        "wills": {"armed": 9, "waiting": 0},
        "counters": {"doubtful_dropped": 3},
        "refusals": {"version": 2},
    }
    monkeypatch.setitem(STATUS, "fabric", fabric)
    assert run("status") == 0
    out = capsys.readouterr().out
    for pattern in (
        r"edge-2 +- +active +1 +1 +12,345 +6 +7",
        r"algorithm +│ sf",
        r"local filters +│ 1,234",
        r"local synchronizing +│ no",
        r"nodes known +│ edge-1, edge-2, edge-3",
        r"edge-3 +│ +2 +│ edge-1 - edge-2 - edge-3",
        r"4,321 topics",
        r"9 armed",
        r"doubtful dropped +│ 3",
        r"refused: version +│ 2",
        r"2 nodes of the fabric are called edge-2",
    ):
        assert re.search(pattern, out), pattern


# ---- documentation ---------------------------------------------------------------------------


def test_every_command_and_option_is_documented() -> None:
    import typer.main

    text = REFERENCE.read_text()
    group = typer.main.get_command(app)
    commands = dict(getattr(group, "commands", {}))
    assert set(commands) >= {"node", "up", "check", "status", "peers"}
    for outer in ("peers", "bench", "reproduce"):
        inner = getattr(commands[outer], "commands", {})
        commands |= {f"{outer} {name}": command for name, command in inner.items()}
    assert {"peers list", "peers add", "bench run", "bench index"} <= set(commands)
    for name, command in commands.items():
        section = re.split(r"\n##+ ", text.partition(f"# `isthmus {name}")[2])[0]
        assert section, name
        for parameter in (p for p in command.params if not getattr(p, "hidden", False)):
            for option in (o for o in parameter.opts if o.startswith("--") and o != "--help"):
                assert option in section, f"{name} {option}"


def test_what_the_benchmark_needs_and_is_not_installed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("isthmus.cli.bench.NEEDED", ("pyarrow", "not_there"))
    with pytest.raises(SystemExit) as ended:
        main(["bench", "scenarios"])
    assert ended.value.code == 1
    assert capsys.readouterr().err == (
        "isthmus: not_there is not installed; pip install 'isthmus[bench]'\n"
    )
    with pytest.raises(SystemExit) as ended:
        main(["bench", "run", "--help"])
    assert ended.value.code == 0
    assert "--interval-ms" in capsys.readouterr().out


def test_help_shows_what_is_in_brackets(capsys: pytest.CaptureFixture[str]) -> None:
    """The library that prints it takes some of them for markup."""
    with pytest.raises(SystemExit):
        main(["peers", "add", "--help"])
    shown = capsys.readouterr().out
    assert "link.lanes" in shown
    assert "link.qos" in shown
