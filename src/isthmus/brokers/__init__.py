"""Real brokers for the demo, the tests and the benchmarks.

Every broker runs in the foreground as a child of this process, on loopback, on a port of its
own and in a temporary folder; no system service is touched.  One module each, behind
:class:`isthmus.brokers.base.Broker`; a module is imported only when its broker is asked for::

    with create("mosquitto") as broker:
        connect_to(broker.host, broker.port)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from isthmus.brokers.base import Broker

__all__ = ["broker_class", "create", "names"]

# name -> (module, class); the order is that of their start times.
_REGISTRY: dict[str, tuple[str, str]] = {
    "mosquitto": ("mosquitto", "Mosquitto"),
    "embedded": ("embedded", "Embedded"),
    "aedes": ("aedes", "Aedes"),
    "moquette": ("moquette", "Moquette"),
    "ejabberd": ("ejabberd", "Ejabberd"),
    "hivemq": ("hivemq", "HiveMQ"),
    "activemq": ("activemq", "ActiveMQ"),
    "rabbitmq": ("rabbitmq", "RabbitMQ"),
}


def names() -> tuple[str, ...]:
    """The names :func:`create` knows."""
    return tuple(_REGISTRY)


def broker_class(name: str) -> type[Broker]:
    """The class of the broker called `name`, imported on demand."""
    try:
        module_name, class_name = _REGISTRY[name]
    except KeyError:
        raise ValueError(f"no broker called {name!r}; known: {', '.join(_REGISTRY)}") from None
    from importlib import import_module

    found: type[Broker] = getattr(import_module(f"{__name__}.{module_name}"), class_name)
    return found


def create(name: str, **options: Any) -> Broker:
    """A broker that is not started yet; `options` are the arguments of its class."""
    return broker_class(name)(**options)
