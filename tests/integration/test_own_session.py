"""A node whose broker refuses the node's own sessions says so, where people look.

a ── b, and b's broker asks for a password, which b has or has not.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from conftest import BrokerFactory
from isthmus.mqtt.packets import PubAck, Publish, Subscribe, Subscription
from support.nodes import NodeProcess, free_port
from support.raw import RawClient
from support.waiting import wait_for


@pytest.mark.parametrize("has_login", [True, False], ids=["login", "no-login"])
def test_a_node_needs_a_login_of_its_own(
    tmp_path: Path, broker_factory: BrokerFactory, has_login: bool
) -> None:
    passwords = tmp_path / "passwords"
    program = shutil.which("mosquitto_passwd")
    assert program is not None, "mosquitto_passwd comes with Debian's package mosquitto"
    subprocess.run([program, "-b", "-c", str(passwords), "user", "secret"], check=True)
    strict = broker_factory(
        "mosquitto",
        username="user",
        password="secret",
        allow_anonymous=False,
        extra=[f"password_file {passwords}"],
    )
    link = f"127.0.0.1:{free_port()}"
    login = {"username": "user", "password": "secret"} if has_login else {}
    b = NodeProcess(
        tmp_path,
        f"mqtt://127.0.0.1:{strict.port}",
        id="b",
        listen={"link": link},
        broker=login,
    )
    a = NodeProcess(
        tmp_path,
        f"mqtt://127.0.0.1:{broker_factory('mosquitto').port}",
        id="a",
        peers=[{"address": link}],
    )
    with b, a, RawClient(b.port) as subscriber, RawClient(a.port) as publisher:
        subscriber.connect("subscriber", username="user", password=b"secret")
        subscriber.send(Subscribe(1, (Subscription("t", 1),)))
        subscriber.receive()
        publisher.connect("publisher")
        wait_for(
            lambda: a.status()["fabric"]["algorithm"]["neighbors"]["b"]["received_filters"] == 1,
            10,
            "the inter-subscription",
        )
        if has_login:
            publisher.send(Publish("t", b"x", 1, packet_id=1))
            assert isinstance(publisher.receive(), PubAck)
            packet = subscriber.receive()
            assert isinstance(packet, Publish)
            assert packet.payload == b"x"
            return
        # The link is enough for the login to be tried: no message has come.
        wait_for(lambda: not b.is_ready(), 10, "b to say that it is not ready")
        broker = b.status()["broker"]
        assert broker["own_session_refused"] is True
        assert "refuses the node's own session" in broker["problem"]
        assert "isthmus_broker_own_session_refused 1.0" in b.get("/metrics")
        assert b.log().count("broker refuses the node's own session") == 1
