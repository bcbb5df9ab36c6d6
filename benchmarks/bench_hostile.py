"""How long the node is held by hostile clients and neighbors, and what others notice of it.

    python benchmarks/bench_hostile.py [--quick] [--rounds N] [--only NAME] [--out FILE] [--docs]

What is measured, how, and how to read it is in ``benchmarks/README.md``.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a script: find `benchmarks`

from benchmarks.command import RESULTS, run
from benchmarks.hostile.attacker import attack
from benchmarks.hostile.bystanders import running_bystanders
from benchmarks.hostile.inputs import INPUTS, Input, Target
from benchmarks.hostile.report import Round, Row, print_rows, write_docs, write_json
from benchmarks.pages import commit
from benchmarks.relay.processes import configured_node, node_file, raise_file_limit, running_broker
from benchmarks.relay.report import machine_facts

from isthmus.errors import LoadError
from isthmus.processes.ports import free_port

__all__ = ["main"]

PAGE = Path(__file__).resolve().parents[1] / "docs" / "explanation" / "hostile-input.md"
PATIENCE_S = 60.0
QUICK = 0.1
ROUNDS = 3


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark; 1 when it failed, or when `--check` is given and a row was missed."""
    options = _options(arguments)
    return run("hostile", 150, lambda console: _bench(options, console), check=options.check)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench_hostile", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument(
        "--quick", action="store_true", help="a tenth of every input, once, about 2 min"
    )
    parser.add_argument(
        "--rounds", type=int, help=f"how often; default {ROUNDS}, with --quick once"
    )
    parser.add_argument(
        "--only", action="append", help="an input's name; may be given several times"
    )
    parser.add_argument("--out", type=Path, default=RESULTS / "hostile.json", help="JSON to write")
    parser.add_argument("--docs", action="store_true", help=f"also write {PAGE.name}")
    parser.add_argument("--check", action="store_true", help="exit 1 when a row was missed")
    return parser.parse_args(arguments)


def _bench(options: argparse.Namespace, console: Console) -> bool:
    raise_file_limit()
    chosen = [each for each in INPUTS if not options.only or each.name in options.only]
    if not chosen:
        raise LoadError(f"no such input; there are {', '.join(each.name for each in INPUTS)}")
    size = QUICK if options.quick else 1.0
    facts = {
        "commit": commit(),
        "time": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "machine": machine_facts(console),
        "size": size,
    }
    rounds: dict[str, list[Round]] = {each.name: [] for each in chosen}
    for number in range(options.rounds or (1 if options.quick else ROUNDS)):
        for each in chosen:
            with running_site(size) as site:
                measured = _measure(each, site, console)
            rounds[each.name].append(measured)
            cells = Row(each.name, each.what, (measured,)).cells()
            console.print(f"{number + 1}:", "  ".join(cells), markup=False)
    rows = [Row(each.name, each.what, tuple(rounds[each.name])) for each in chosen]
    print_rows(rows, console)
    write_json(options.out, rows, facts)
    if options.docs:
        write_docs(PAGE, rows, facts)
    return all(row.met for row in rows)


# ---- what is started ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Site:
    """The node under attack, and its neighbor."""

    target: Target
    neighbor_port: int
    neighbor_admin_port: int

    def status(self) -> dict[str, Any]:
        return _status(self.target.admin_port)


@contextmanager
def running_site(size: float) -> Iterator[Site]:
    """Two brokers, a node before each, a link between the nodes; all of it fresh."""
    ports = [free_port() for _ in range(6)]
    port, link_port, ws_port, admin_port, neighbor_port, neighbor_admin_port = ports
    with running_broker() as broker, running_broker() as other_broker:
        node = node_file(
            "attacked", broker.port, mqtt=port, ws=ws_port, link=link_port, admin=admin_port
        )
        neighbor = node_file(
            "neighbor",
            other_broker.port,
            peer=link_port,
            mqtt=neighbor_port,
            admin=neighbor_admin_port,
        )
        with configured_node(node, port), configured_node(neighbor, neighbor_port):
            target = Target(port, link_port, ws_port, admin_port, size)
            site = Site(target, neighbor_port, neighbor_admin_port)
            _until(lambda: _linked(site), "the two nodes are not linked")
            yield site


def _status(admin_port: int) -> dict[str, Any]:
    url = f"http://127.0.0.1:{admin_port}/api/status"
    with urllib.request.urlopen(url, timeout=PATIENCE_S) as response:
        status: dict[str, Any] = json.loads(response.read())
        return status


def _change(admin_port: int, method: str, path: str, body: object = None) -> None:
    request = urllib.request.Request(
        f"http://127.0.0.1:{admin_port}{path}",
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=PATIENCE_S):
        pass


def _until(condition: Callable[[], bool], otherwise: str, seconds: float = PATIENCE_S) -> None:
    ends_s = time.monotonic() + seconds
    while True:
        try:
            if condition():
                return
        except (urllib.error.URLError, TimeoutError, ConnectionError):
            pass
        if time.monotonic() > ends_s:
            raise LoadError(otherwise)
        time.sleep(0.1)


def _linked(site: Site) -> bool:
    links = site.status()["fabric"]["links"]
    return any(link["neighbor"] == "neighbor" and link["status"] == "active" for link in links)


# ---- one row -----------------------------------------------------------------------------


def _measure(each: Input, site: Site, console: Console) -> Round:
    with running_bystanders(site.target.port, site.neighbor_port) as bystanders:
        time.sleep(0.5)
        began_s = time.monotonic()
        if problem := attack(each.name, site.target):
            console.print(f"{each.name}: {problem}", markup=False)
        if each.name == "retained topics":
            _compare_again(site)
        seconds = time.monotonic() - began_s
        time.sleep(0.5)
        _until(lambda: not _busy(site), f"{each.name}: the node does not come to rest")
        waits = bystanders.finish()
    status = site.status()
    return Round(
        seconds=round(seconds, 1),
        longest_turn_ms=status["loop"]["longest_turn_s"] * 1000,
        longest_turn_cpu_ms=status["loop"]["longest_turn_cpu_s"] * 1000,
        busiest_turn_cpu_ms=status["loop"]["busiest_turn_cpu_s"] * 1000,
        slow_turns=status["counters"]["slow_turns"],
        here_p50_ms=waits.share(False, 0.5),
        here_p99_ms=waits.share(False, 0.99),
        here_max_ms=waits.share(False, 1.0),
        there_p99_ms=waits.share(True, 0.99),
        there_max_ms=waits.share(True, 1.0),
        sent=waits.sent,
        lost=waits.lost,
        problem=waits.problem,
    )


def _busy(site: Site) -> bool:
    return bool(site.status()["fabric"]["algorithm"].get("working"))


def _compare_again(site: Site) -> None:
    """Take the link away and bring it back, so that the two compare what they have retained."""
    topics = site.target.some(300_000)
    for admin_port in (site.target.admin_port, site.neighbor_admin_port):
        _until(
            lambda port=admin_port: _status(port)["fabric"]["retained"]["topics"] >= topics,  # type: ignore[misc]
            "the retained messages do not all arrive",
            300.0,
        )
    _change(site.neighbor_admin_port, "DELETE", "/api/peers/attacked")
    _until(lambda: not _linked(site), "the link does not end")
    address = f"127.0.0.1:{site.target.link_port}"
    _change(site.neighbor_admin_port, "POST", "/api/peers", {"address": address})
    _until(lambda: _linked(site), "the link does not come back")
    time.sleep(5.0)


if __name__ == "__main__":
    sys.exit(main())
