"""Real nodes that know a multicast group, or a seed, and nothing else; all on loopback."""

from __future__ import annotations

import socket
from functools import partial
from pathlib import Path
from typing import Any

from isthmus.bench.rig.lines import Shape, Shapes
from isthmus.bench.rig.shaping_main import start_shaping
from isthmus.config.addresses import Address
from isthmus.exchange.discovery.datagrams import Announcement, discovery_key, write
from isthmus.exchange.link.hello import link_key
from isthmus.processes.children import end
from isthmus.processes.ports import free_port
from support.fabrics import QUICK_LINKS, NodeFabric

SECRET = "7f3b2a90c1d4e5f6"
GROUP = "239.255.77.84"


def made(
    folder: Path, tables: dict[str, dict[str, Any]], algorithm: str = "sf", **link: float
) -> NodeFabric:
    """Nodes without a link that anybody has configured."""
    fabric = NodeFabric(
        folder, names=tables, tapped=False, algorithm=algorithm, link={"secret": SECRET, **link}
    )
    for name, table in tables.items():
        fabric.nodes[name].tables["discovery"] = {"every_s": 0.2, **table}
    return fabric


def linked(fabric: NodeFabric, here: str, there: str) -> bool:
    return fabric.link(here, there).get("status") == "active"


def crosses(fabric: NodeFabric, here: str, there: str) -> None:
    with fabric.client(here) as publisher, fabric.client(there) as subscriber:
        subscriber.subscribe("t")
        fabric.settle()
        publisher.publish("t", b"found", qos=1)
        assert subscriber.next().payload == b"found"


def udp_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def test_two_nodes_of_a_group_find_each_other_and_hear_no_strangers(tmp_path: Path) -> None:
    group = f"{GROUP}:{udp_port()}"
    table = {"group": group, "interface": "127.0.0.1", "ttl": 0}
    with made(tmp_path, {"a": table, "b": table}) as fabric:
        fabric["a"].wait_until(partial(linked, fabric, "a", "b"))
        fabric["b"].wait_until(partial(linked, fabric, "b", "a"))
        crosses(fabric, "a", "b")
        crosses(fabric, "b", "a")
        forged = Announcement("x", "1f", "sf", f"127.0.0.1:{free_port()}", 1_700_000_000_000)
        replayed = write(forged, discovery_key(link_key(SECRET.encode())))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.setsockopt(
                socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1")
            )
            host, _, port = group.rpartition(":")
            for datagram in (write(forged, b""), write(forged, b"k" * 32), b"noise", replayed):
                sock.sendto(datagram, (host, int(port)))

        def told() -> bool:
            ignored = fabric["a"].fabric()["discovery"]["ignored"]
            return (ignored.get("stranger"), ignored.get("malformed"), ignored.get("clock")) == (
                2,
                1,
                1,
            )

        fabric["a"].wait_until(told)
        assert "was not made with this fabric's secret" in fabric["a"].log()
        peers = fabric["a"].fabric()["peers"] + fabric["b"].fabric()["peers"]
        known = {f"127.0.0.1:{port}" for port in fabric.link_ports.values()}
        assert {peer["address"] for peer in peers} <= known


def test_a_seed_hears_of_a_node_and_links_with_it(tmp_path: Path) -> None:
    port = udp_port()
    tables: dict[str, dict[str, Any]] = {
        "seed": {"listen": f"127.0.0.1:{port}"},
        "b": {"seeds": [f"localhost:{port}"]},
    }
    with made(tmp_path, tables) as fabric:
        fabric["seed"].wait_until(partial(linked, fabric, "seed", "b"))
        crosses(fabric, "b", "seed")


def test_nodes_that_find_each_other_are_as_far_apart_as_is_emulated(tmp_path: Path) -> None:
    """Nobody is told of a link; what is announced is the address of each node's proxy.

    With `tree`, which links with everybody: with `sf` two nodes that a third one has joined need no
    link of their own.
    """
    table = {"group": f"{GROUP}:{udp_port()}", "interface": "127.0.0.1", "ttl": 0}
    fabric = made(tmp_path, {"a": table, "b": table, "c": table}, "tree", **QUICK_LINKS)
    listening = {name: Address("127.0.0.1", port) for name, port in fabric.link_ports.items()}
    far = {("a", "c"): Shape(0.06), ("c", "a"): Shape(0.04)}
    process, proxies = start_shaping(Shapes(Shape(0.01), far), listening, tmp_path)
    try:
        for name, address in proxies.items():
            fabric.nodes[name].tables["node"]["advertise"] = str(address)
        with fabric:
            for here, there, least_ms in (("a", "b", 20), ("a", "c", 100), ("b", "c", 20)):
                link = partial(fabric.link, here, there)
                fabric[here].wait_until(lambda link=link: link().get("rtt_ms", 0) > 0)  # type: ignore[misc]
                assert link()["rtt_ms"] >= least_ms, (here, there)
    finally:
        end(process, 1.0)


def test_a_socket_that_cannot_be_had_is_named(tmp_path: Path) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        taken = f"127.0.0.1:{sock.getsockname()[1]}"
        with made(tmp_path, {"a": {"listen": "127.0.0.1:0"}}) as fabric:
            node = fabric["a"]
            node.stop()
            node.tables["discovery"]["listen"] = taken
            node.launch()
            assert node.process is not None
            assert node.process.wait(20) != 0
            assert f"discovery.listen: {taken}: Address already in use" in node.log()
