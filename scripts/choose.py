"""What each algorithm puts on the links, beside each other: docs/howto/choose-an-algorithm.md.

python scripts/choose.py            measure, write the JSON file and the tables of the page anew
python scripts/choose.py --check    exit 1 if that gives other numbers than the file has

Five nodes, all linked with each other, in the exact simulator, which runs the nodes' own code: the
numbers are the same each time.  A client publishes 1,000 messages on one topic within 20 s, or one
at each node 200 of them; a second after it has begun, who wants the topic subscribes.  All that the
links carry from before the first message until a moment after the last is counted: messages, and
packets of control (pings left out).
"""

from __future__ import annotations

import json
import sys
import time
from itertools import combinations
from pathlib import Path
from typing import Final

from isthmus.cooperation.registry import load
from isthmus.sim.fabric import SimFabric
from isthmus.sim.provenance import provenance

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "howto" / "choose-an-algorithm.md"
RECORD = PAGE.with_suffix(".json")

ALGORITHMS: Final = ("pf", "sf", "tree", "topic-tree", "skipgraph")
NODES: Final = 5
MESSAGES: Final = 1_000
LASTS_S: Final = 20.0
TOPIC: Final = "plant/7/temperature"
CASES: Final = {
    "nobody": (),
    "one at the node of a publisher": (0,),
    "one at another node": (3,),
    "one at every node": (0, 1, 2, 3, 4),
}
PUBLISHERS: Final = {"one node publishes": (0,), "every node publishes": (0, 1, 2, 3, 4)}


def measured(algorithm: str, publishing: tuple[int, ...], wanting: tuple[int, ...]) -> list[int]:
    """Messages and packets of control on all links."""
    fabric = SimFabric(seed=7, algorithm=load(algorithm))
    nodes = [fabric.node(f"n{number}") for number in range(NODES)]
    for one, other in combinations(nodes, 2):
        fabric.link(one, other)
    publishers = [nodes[number].client(f"p{number}") for number in publishing]
    subscribers = [nodes[number].client(f"s{number}") for number in wanting]
    fabric.settle()
    before = _carried(fabric)
    begun_s = fabric.now_s
    for number in range(MESSAGES):
        fabric.engine.run_until(begun_s + number * LASTS_S / MESSAGES)
        if number == MESSAGES // int(LASTS_S):
            for subscriber in subscribers:
                subscriber.subscribe(TOPIC, qos=1)
        publishers[number % len(publishers)].publish(TOPIC, b"%d" % number, qos=1)
    fabric.settle()
    return [now - then for now, then in zip(_carried(fabric), before, strict=True)]


def _carried(fabric: SimFabric) -> list[int]:
    links = [link.traffic() for node in fabric.nodes.values() for link in node.exchange.links]
    return [sum(each.data_sent for each in links), sum(each.control_sent for each in links)]


def measure() -> dict[str, dict[str, dict[str, list[int]]]]:
    return {
        who: {
            case: {name: measured(name, publishing, wanting) for name in ALGORITHMS}
            for case, wanting in CASES.items()
        }
        for who, publishing in PUBLISHERS.items()
    }


def table(cases: dict[str, dict[str, list[int]]]) -> str:
    lines = [
        "| who wants it | " + " | ".join(f"`{name}`" for name in ALGORITHMS) + " |",
        "|---|" + "---|" * len(ALGORITHMS),
    ]
    for case, found in cases.items():
        cells = (f"{found[name][0]:,} + {found[name][1]:,}" for name in ALGORITHMS)
        lines.append(f"| {case} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def page(found: dict[str, dict[str, dict[str, list[int]]]]) -> str:
    text = PAGE.read_text()
    for who, cases in found.items():
        before, begin, rest = text.partition(f"<!-- {who} -->\n")
        _, end, after = rest.partition(f"<!-- /{who} -->")
        text = f"{before}{begin}\n{table(cases)}\n\n{end}{after}"
    return text


def main() -> int:
    begun_s = time.monotonic()
    found = measure()
    if "--check" in sys.argv:
        same = json.loads(RECORD.read_text())["messages and control"] == found
        same = same and page(found) == PAGE.read_text()
        print("as recorded" if same else "other numbers than recorded: run scripts/choose.py")
        return 0 if same else 1
    made_by = provenance("python scripts/choose.py", time.monotonic() - begun_s)
    RECORD.write_text(json.dumps({**made_by, "messages and control": found}, indent=1) + "\n")
    PAGE.write_text(page(found))
    for who, cases in found.items():
        print(f"{who}\n{table(cases)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
