"""What brokers were seen to do directly, seldom, in earlier measurements; and how to see more.

    PYTHONPATH=tests python -m conformance.variants moquette-3.1.1-paho-persistent-session-2 60

runs the cells whose names begin so, directly at fresh brokers, and adds what it saw to
`variants.json` beside this file.  What is seen once in thirty runs need not be found anew in every
session of tests.  Nothing in that file was ever seen through a node only.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

from conformance.observation import Plain, Seen

__all__ = ["FILE", "add", "is_known_stop", "variants_of"]

FILE = Path(__file__).with_name("variants.json")


def variants_of(broker: str, level: int, scenario: str) -> list[Seen]:
    """What this broker was seen to do, whichever the library."""
    return _recorded().get(_key(broker, level, scenario), [])


def is_known_stop(broker: str, level: int, seen: Seen) -> bool:
    """Whether this broker was seen to stop at such a packet, in whichever scenario."""
    prefix = _key(broker, level, "")
    known = (
        each for key, all_seen in _recorded().items() if key.startswith(prefix) for each in all_seen
    )
    return "stopped" in seen and _step(seen) in {_step(each) for each in known}


def _step(seen: Seen) -> str:
    """Where it stopped, but for the names: `SUBSCRIBE: no SUBACK`."""
    return re.sub(r" (to|of client) \S+:", ":", str(seen.get("stopped", "")))


def add(found: Mapping[tuple[str, int, str], Iterable[Seen]]) -> None:
    """Record what a broker was seen to do directly."""
    known = {key: [*seen] for key, seen in _recorded().items()}
    for place, variants in found.items():
        of_cell = known.setdefault(_key(*place), [])
        of_cell += [each for each in variants if each not in of_cell]
    lines = [
        f" {json.dumps(key)}: [\n  " + ",\n  ".join(json.dumps(each) for each in seen) + "\n ]"
        for key, seen in sorted(known.items())
        if seen
    ]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    _recorded.cache_clear()


def _key(broker: str, level: int, scenario: str) -> str:
    return f"{broker}-{'5' if level == 5 else '3.1.1'}-{scenario}"


@cache
def _recorded() -> dict[str, list[Seen]]:
    content = json.loads(FILE.read_text()) if FILE.exists() else {}
    return {
        key: [{name: _plain(value) for name, value in each.items()} for each in seen]
        for key, seen in content.items()
    }


def _plain(value: object) -> Plain:
    """JSON has lists for tuples."""
    if isinstance(value, list):
        return tuple(_plain(each) for each in value)
    assert value is None or isinstance(value, str | int | bool)
    return value


def main(prefix: str, runs: str = "30") -> int:
    """Learn what some cells do directly."""
    from conformance.matrix import all_cells, is_silent, observe
    from conformance.stage import Address
    from isthmus.brokers import create

    for cell in (each for each in all_cells() if str(each).startswith(prefix)):
        found: list[Seen] = []
        left = int(runs)
        while left:
            with create(cell.broker) as broker:
                address = Address(broker.port, broker.username, broker.password)
                while left:
                    left -= 1
                    observation = observe(cell, address, 8.0)
                    if is_silent(observation):
                        break  # it may have stopped for good
                    found.append(observation.seen)
        distinct = [each for place, each in enumerate(found) if each not in found[:place]]
        for each in distinct:
            print(f"{cell}: {found.count(each)} of {len(found)}: {dict(each)}")
        if len(distinct) > 1:
            add({(cell.broker, cell.level, cell.name): distinct})
    return 0


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
