"""Opens sites: real brokers, and a real node process in front of one of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import mkdtemp

from conformance.matrix import Site
from conformance.stage import Address
from isthmus.brokers import create
from isthmus.brokers.base import Broker
from support.nodes import NodeProcess

__all__ = ["private_site", "shared_site", "split_site"]


def _address(broker: Broker, port: int) -> Address:
    return Address(port, broker.username, broker.password)


@contextmanager
def shared_site(broker: Broker, folder: Path) -> Iterator[Site]:
    """Both sides at one broker, which stays."""
    own = Path(mkdtemp(dir=folder))
    with NodeProcess(own, f"mqtt://127.0.0.1:{broker.port}") as node:
        yield Site(_address(broker, broker.port), _address(broker, node.port))


@contextmanager
def split_site(
    direct: Broker, behind: Mapping[Broker, Sequence[str]], folder: Path
) -> Iterator[Site]:
    """On the one side a broker, on the other a node before several, with topics each."""
    brokers = [
        {
            "name": f"broker-{number}",
            "url": f"mqtt://127.0.0.1:{broker.port}",
            **({"topics": list(topics)} if topics else {}),
        }
        for number, (broker, topics) in enumerate(behind.items())
    ]
    with NodeProcess(Path(mkdtemp(dir=folder)), "", brokers=brokers) as node:
        yield Site(_address(direct, direct.port), _address(direct, node.port))


@contextmanager
def private_site(name: str, folder: Path) -> Iterator[Site]:
    """A broker for each side, gone afterwards."""
    with ExitStack() as stack:
        direct, behind = (stack.enter_context(create(name)) for _ in range(2))
        own = Path(mkdtemp(dir=folder))
        node = stack.enter_context(NodeProcess(own, f"mqtt://127.0.0.1:{behind.port}"))
        yield Site(_address(direct, direct.port), _address(behind, node.port))
