"""The Geo paper's systems and its delay experiment with real brokers and nodes."""

from __future__ import annotations

import io
import json
import socket
import threading
from pathlib import Path

import pytest
from rich.console import Console

from conftest import require_broker
from isthmus.config.addresses import Address
from isthmus.mqtt.encoding import encode
from isthmus.mqtt.packets import Connect, Packet, Publish, Subscribe, Subscription
from isthmus.reproduce.geo.command import Settings, reproduce
from isthmus.reproduce.geo.delay import KINDS, Network, measure_delays
from isthmus.reproduce.geo.expected import expected
from isthmus.reproduce.geo.experiments import CONTENDERS, Contender
from isthmus.reproduce.geo.live import measure_live
from isthmus.reproduce.geo.model import Parameters
from isthmus.reproduce.geo.taps import Seen, Taps
from isthmus.reproduce.geo.workload import Workload

QUIET_S = 0.05
LIMIT_S = 10.0
D_S = 0.01


def echo() -> Address:
    """Somebody who sends back whatever comes, once."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with listener, listener.accept()[0] as peer:
            while data := peer.recv(4096):
                peer.sendall(data)

    threading.Thread(target=serve, daemon=True).start()
    return Address("127.0.0.1", listener.getsockname()[1])


@pytest.mark.parametrize("client_id", ["c", "$isthmus/a"])
@pytest.mark.parametrize("piece", [1, 3, 1000])
def test_a_tap_passes_all_on_and_counts_both_ways(client_id: str, piece: int) -> None:
    packets: list[Packet] = [
        Connect(client_id),
        Subscribe(1, (Subscription("0/t"),)),
        Publish("0/t", b"x" * 300),
        Publish("0/t", b"y"),
        Publish("$isthmus/sf/sync", b"begin"),
    ]
    said = b"".join(encode(packet, 5) for packet in packets)
    with Taps() as taps:
        address = taps.add("tap", echo())
        with socket.create_connection((address.host, address.port)) as client:
            for at in range(0, len(said), piece):
                client.sendall(said[at : at + piece])
            heard = b""
            while len(heard) < len(said):
                heard += client.recv(4096)
        assert heard == said
        taps.rest(QUIET_S, LIMIT_S)
        node = client_id.removeprefix("$isthmus/") if "/" in client_id else ""
        kinds = {"CONNECT": 1, "SUBSCRIBE": 1, "PUBLISH": 2}
        assert taps.so_far() == {
            Seen("tap", node, inwards, kind): count
            for inwards in (True, False)
            for kind, count in kinds.items()
        }


@pytest.mark.parametrize(
    "contender",
    [
        "geo",
        pytest.param("pf", marks=pytest.mark.slow),
        pytest.param("sf", marks=pytest.mark.slow),
    ],
)
def test_live_counts_are_as_derived(contender: Contender) -> None:
    require_broker("mosquitto")
    workload = Workload(Parameters(1, 2, 5), 3)
    counted = measure_live(contender, workload, "mosquitto")
    assert counted.counts == expected(CONTENDERS[contender].way, workload)


@pytest.mark.slow
@pytest.mark.alone
def test_a_gateway_takes_the_round_trips_that_are_predicted() -> None:
    require_broker("mosquitto")
    network = Network("short", D_S, D_S)
    delays = measure_delays(network, 10, "mosquitto")
    assert set(delays.series) == set(KINDS)
    for kind in KINDS:
        assert len(delays.series[kind]) == 10
        assert min(delays.series[kind]) >= network.round_trips_s(kind)
    assert delays.extra_round_trips("open") < 0.4
    assert 0.4 < delays.extra_round_trips("first") < 0.9  # one of the two halves of the way


@pytest.mark.slow
def test_the_command_from_brokers_to_report(tmp_path: Path) -> None:
    require_broker("mosquitto")
    settings = Settings(tmp_path / "out", quick=True, only=("sim-sf-k2", "live-geo-k1"))
    said = io.StringIO()
    done = reproduce(settings, console=Console(file=said, width=160))
    assert done.failed == {}, said.getvalue()
    assert [each.different for each in done.measured] == [0, 0]
    written = json.loads((tmp_path / "out" / "results.json").read_text())
    assert {row["verdict"] for row in written["paper"]} == {"yes", "no"}
    assert "<h2>Equations and counts</h2>" in (tmp_path / "out" / "report.html").read_text()
