"""A broker that asks for passwords: whom it lets in and how it refuses, with and without a node."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from conformance.clients import LIBRARIES, Client, Options, library
from conformance.stage import Address, Stage
from conftest import require_broker
from isthmus.brokers import create
from support.nodes import NodeProcess

USER, PASSWORD = "gate", "keeper"
NOT_AUTHORIZED = {4: "CONNACK 0x05", 5: "CONNACK 0x87"}


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, int]]:
    """Of a Mosquitto with one user, and of a node before it."""
    require_broker("mosquitto")
    folder = tmp_path_factory.mktemp("passwords")
    passwords = folder / "passwords"
    program = shutil.which("mosquitto_passwd")
    assert program is not None, "mosquitto_passwd comes with Debian's package mosquitto"
    subprocess.run([program, "-b", "-c", str(passwords), USER, PASSWORD], check=True)
    settings = {"extra": [f"password_file {passwords}"], "allow_anonymous": False}
    with (
        create("mosquitto", username=USER, password=PASSWORD, **settings) as broker,
        NodeProcess(folder, f"mqtt://127.0.0.1:{broker.port}") as node,
    ):
        yield broker.port, node.port


@pytest.mark.parametrize("level", [4, 5])
@pytest.mark.parametrize(
    ("username", "password", "accepted"),
    [
        (USER, PASSWORD, True),
        (USER, "wrong", False),
        ("stranger", PASSWORD, False),
        (USER, None, False),
        (None, None, False),
    ],
    ids=["right", "wrong-password", "unknown-user", "no-password", "anonymous"],
)
def test_the_connack_is_the_brokers(
    ports: tuple[int, int],
    level: int,
    username: str | None,
    password: str | None,
    accepted: bool,
) -> None:
    answers: list[tuple[str, str]] = []
    for port in ports:
        with Stage(Address(port, username, password), level, "raw", 4) as stage:
            client = stage.raw()
            answer = stage.next_packet(client, stage.connect_of(client, "c"))
            then = "" if accepted else stage.next_packet(client)
            answers.append((answer, then))
    assert answers[0] == answers[1]
    if accepted:
        assert answers[0][0].startswith("CONNACK 0x00")
    else:
        assert answers[0] == (NOT_AUTHORIZED[level], "closed")


@pytest.mark.parametrize("level", [4, 5])
@pytest.mark.parametrize("name", LIBRARIES)
def test_a_library_is_refused_alike(ports: tuple[int, int], level: int, name: str) -> None:
    with ExitStack() as stack:

        def code(port: int, password: str) -> int:
            options = Options(port, level, "refused", username=USER, password=password)
            client: Client = library(name)(options)
            stack.callback(client.close)
            return client.connect().code

        direct, through_node = (code(port, "wrong") for port in ports)
        assert direct == through_node > 0
        assert [code(port, PASSWORD) for port in ports] == [0, 0]


def test_the_password_is_nowhere_in_the_nodes_log(tmp_path: Path, ports: tuple[int, int]) -> None:
    with NodeProcess(tmp_path, f"mqtt://127.0.0.1:{ports[0]}", log={"level": "debug"}) as node:
        with Stage(Address(node.port, USER, "a-Secret-word"), 5, "raw", 4) as stage:
            client = stage.raw()
            assert stage.next_packet(client, stage.connect_of(client, "c")) == "CONNACK 0x87"
        assert "Secret" not in node.log()
