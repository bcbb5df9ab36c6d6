"""Cells that are split and merged under load, at two gateways, before brokers of four makes.

    clients ── west ┬── mosquitto  0, 1 ──────┬ east ── clients     1 is split over all of them,
                    ├── ejabberd   2 ─────────┤                     and merged again
                    ├── hivemq     3 ─────────┤
                    └── activemq   (nothing) ─┘

In MQTT 5 without ActiveMQ, which does not speak it.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from conformance.clients import Client
from isthmus.config.addresses import Address
from isthmus.errors import AdminError
from isthmus.fabric.geo_moves import change_cells
from support.gateways import Crowd, Key, Site, before, matching, started
from support.waiting import wait_for

FILTERS = ("#", "1/#", "+/2/#", "1/1/#", "0/#")
CELLS = ("0/0", "1/0", "1/1", "1/2", "1/3", "2/2")
PAUSE_S = 0.2
"""Between two messages: brokers keep 1,000 for who is away."""
FOUR = ("mosquitto", "ejabberd", "hivemq", "activemq")


def site_of(stack: ExitStack, folder: Path, names: tuple[str, ...]) -> Site:
    cells = {"mosquitto": ["0", "1"], "ejabberd": ["2"], "hivemq": ["3"]}
    return before(
        stack, started(stack, names), folder, ("west", "east"), cooperation={"cells": cells}
    )


def admins(site: Site) -> list[Address]:
    return [Address("127.0.0.1", each.admin_port) for each in site.gateways]


class Load(threading.Thread):
    """Publishes in one cell until it is told to end, and notes what was acknowledged."""

    def __init__(self, crowd: Crowd, port: int, cell: str, name: str) -> None:
        super().__init__()
        self.name = name
        self._topic = crowd.topic(cell)
        self._client = crowd.connected(port)
        self._end = threading.Event()
        self.sent: list[Key] = []
        self.not_acknowledged: list[Key] = []

    def run(self) -> None:
        number = 0
        while not self._end.wait(PAUSE_S):
            key = (self._topic, f"{self.name} {number}", 1 + number % 2)
            found = self._client.publish(key[0], key[1].encode(), qos=key[2])
            (self.sent if found else self.not_acknowledged).append(key)
            number += 1

    def stop(self) -> None:
        self._end.set()
        self.join(60)
        assert not self.is_alive()


def more_from(loads: Sequence[Load]) -> None:
    """Each has had some more acknowledged."""
    before = [len(load.sent) for load in loads]

    def have_gone_on() -> bool:
        return all(len(load.sent) > n + 3 for load, n in zip(loads, before, strict=True))

    wait_for(have_gone_on, 30, "everybody to be acknowledged again")


@pytest.mark.parametrize("level", [4, 5])
def test_cells_are_split_and_merged_under_load(tmp_path: Path, level: int) -> None:
    with ExitStack() as stack:
        names = FOUR if level == 4 else FOUR[:3]
        site = site_of(stack, tmp_path, names)
        crowd = stack.enter_context(site.crowd("paho", level))
        first = crowd.connected(site.ports[0])
        kept = [(crowd.topic(cell, "kept"), f"kept {cell}", 1) for cell in CELLS]
        for topic, payload, qos in kept:
            assert first.publish(topic, payload.encode(), qos=qos, retain=True)
        places = [(port, each) for port in site.ports for each in FILTERS]
        with ThreadPoolExecutor(8) as pool:
            readers: list[Client] = list(
                pool.map(lambda one: crowd.subscriber(one[0], one[1]), places)
            )
        away = crowd.subscriber(site.ports[1], "1/#", name="away", clean=False)
        crowd.until(away, matching(["1/#"], kept))
        away.disconnect()
        loads = [
            Load(crowd, port, cell, f"by {at}")
            for at, port in enumerate(site.ports)
            for cell in CELLS
        ]
        for load in loads:
            load.start()
        more_from(loads)
        quarters = [*names, "mosquitto"][:4]
        change_cells(admins(site), {"split": "1", "brokers": quarters}, timeout_s=60)
        more_from(loads)
        change_cells(admins(site), {"merge": "1", "broker": "hivemq"}, timeout_s=60)
        more_from(loads)
        for load in loads:
            load.stop()
        for node in site.gateways:
            assert node.fabric()["algorithm"]["cells"]["hivemq"] == ["1", "3"]
        assert [each for load in loads for each in load.not_acknowledged] == []
        sent = [key for load in loads for key in load.sent]
        for (port, each), reader in zip(places, readers, strict=True):
            expected = matching([each], [*sent, *kept])
            got = crowd.until(reader, expected)
            assert got == expected, (port, each, Counter(got) - Counter(expected))
        back = crowd.client(site.ports[1], "away", clean=False)
        assert back.connect().code == 0
        expected = matching(["1/#"], sent)
        assert crowd.until(back, expected) == expected
        late = crowd.subscriber(site.ports[0], "1/#")
        expected = matching(["1/#"], kept)
        assert crowd.until(late, expected) == expected


def test_a_broker_that_is_killed_ends_it_and_nothing_is_lost(tmp_path: Path) -> None:
    """By the command, which says why; all is as before, and when the broker is back it works."""
    with ExitStack() as stack:
        site = site_of(stack, tmp_path, FOUR[:3])
        crowd = stack.enter_context(site.crowd("paho", 5))
        reader = crowd.subscriber(site.ports[0], "1/#")
        site.brokers["ejabberd"].kill()
        command = ["geo", "merge", "1", "ejabberd"]
        for each in site.gateways:
            command += ["--node", str(each.file)]

        def run() -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                [sys.executable, "-m", "isthmus", *command],
                capture_output=True,
                text=True,
                check=False,
                timeout=120,
            )

        failed = run()
        assert failed.returncode == 1, failed
        assert "ejabberd" in failed.stderr
        writer = crowd.connected(site.ports[1])
        sent = [(crowd.topic("1/2"), "still there", 1)]
        assert writer.publish(sent[0][0], b"still there", qos=1)
        assert crowd.until(reader, sent) == Counter(sent)
        site.brokers["ejabberd"].start()
        for each in site.gateways:
            each.wait_until(each.is_ready)
        done = run()
        assert done.returncode == 0, done
        assert 'ejabberd = ["1", "2"]' in done.stdout
        sent.append((crowd.topic("1/2"), "there", 1))
        assert writer.publish(sent[1][0], b"there", qos=1)
        assert crowd.until(reader, sent) == Counter(sent)


def test_what_cannot_be_done_is_refused(tmp_path: Path) -> None:
    with ExitStack() as stack:
        site = site_of(stack, tmp_path, FOUR[:3])
        for request, problem in (
            ({"split": "1/1", "brokers": ["mosquitto"] * 4}, "it lies in"),
            ({"split": "7", "brokers": ["mosquitto"] * 4}, "digit 1"),
            ({"split": "1", "brokers": ["mosquitto", "nobody", "hivemq", "hivemq"]}, "no broker"),
            ({"merge": "1/1", "broker": "hivemq"}, "it lies in"),
        ):
            with pytest.raises(AdminError, match=problem):
                change_cells(admins(site), request, timeout_s=10)
