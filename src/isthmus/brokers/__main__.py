"""`python -m isthmus.brokers list` and `… install [NAME…]`.

`list` tells which brokers can be started here and, for the others, what is missing and how to
get it.  `install` fetches those that come from npm and Maven; it exits 1 when one of the
brokers that were asked for cannot be had.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from isthmus.brokers import broker_class, names
from isthmus.brokers.artifacts import Artifact
from isthmus.errors import BrokerError

__all__ = ["main"]

_VERSIONS = {4: "3.1.1", 5: "5"}


def _rows() -> list[tuple[str, str, str]]:
    rows = [("broker", "MQTT", "")]
    for name in names():
        broker = broker_class(name)
        missing = broker.missing()
        versions = ", ".join(_VERSIONS[level] for level in broker.protocol_levels)
        state = (
            "installed" if missing is None else f"{missing.missing} is missing; {missing.remedy}"
        )
        rows.append((name, versions, state))
    return rows


def _list() -> int:
    rows = _rows()
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    for name, versions, state in rows:
        print(f"{name:<{widths[0]}}  {versions:<{widths[1]}}  {state}".rstrip())
    return 0


def _install(wanted: Sequence[str]) -> int:
    status = 0
    for name in wanted or names():
        broker = broker_class(name)
        try:
            if isinstance(broker.needs, Artifact):
                broker.needs.install(lambda line: print(line, file=sys.stderr))
            elif wanted and (missing := broker.missing()) is not None:
                raise missing
        except BrokerError as error:
            print(error, file=sys.stderr)
            status = 1
    return status


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m isthmus.brokers", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="which brokers can be started here")
    install = commands.add_parser("install", help="fetch brokers from npm and Maven")
    install.add_argument("names", nargs="*", metavar="NAME", help=", ".join(names()))
    parsed = parser.parse_args(arguments)
    if parsed.command == "list":
        return _list()
    unknown = [name for name in parsed.names if name not in names()]
    if unknown:
        parser.error(f"no broker called {', '.join(unknown)}; known: {', '.join(names())}")
    return _install(parsed.names)


if __name__ == "__main__":
    raise SystemExit(main())
