"""The brokers of a fabric on this machine: which kind is meant, and starting them together."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from isthmus.config.addresses import BrokerUrl

if TYPE_CHECKING:
    from isthmus.brokers.base import Broker

__all__ = ["broker_url", "create_broker", "start_brokers"]


def create_broker(kind: str) -> Broker | None:
    """The broker that a file asks for, not started yet; None if it is a URL: it runs already."""
    if ":" in kind and kind != "embedded:":
        return None
    from isthmus.brokers import create

    return create(_chosen_kind(kind.rstrip(":")))


def broker_url(kind: str, broker: Broker | None) -> BrokerUrl:
    """Where the broker of that kind is; `broker` is what `create_broker` made of it, started."""
    if broker is None:
        return BrokerUrl.parse(kind)
    return BrokerUrl("mqtt", broker.host, broker.port)


def start_brokers(brokers: Sequence[Broker]) -> None:
    """Start all, as many at once as there are cores: some take many seconds of CPU time.

    Raises `BrokerError` when one fails; then, as after Ctrl-C, none runs.
    """
    import asyncio

    async def start_all() -> None:
        cores = asyncio.Semaphore(os.cpu_count() or 1)

        async def start(broker: Broker) -> None:
            async with cores:
                await broker.async_start()

        await asyncio.gather(*(start(broker) for broker in brokers))

    try:
        asyncio.run(start_all())  # whose end, whatever its cause, cancels those still starting
    except BaseException:
        for broker in brokers:
            broker.stop()
        raise


def _chosen_kind(kind: str) -> str:
    if kind != "auto":
        return kind
    from isthmus.brokers import broker_class

    return "embedded" if broker_class("mosquitto").missing() else "mosquitto"
