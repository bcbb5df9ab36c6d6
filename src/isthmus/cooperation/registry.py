"""Cooperation algorithms by name: the built-in ones and those that plug-ins bring.

A plug-in is any installed distribution with an entry point in the group `isthmus.algorithms`:

    [project.entry-points."isthmus.algorithms"]
    validated-sf = "isthmus_validation:ValidatedSubscriptionFlooding"

The entry point's name is what ``[cooperation] algorithm`` says, and must be the class's `name`.

* Nothing is imported before it is asked for; `names` imports nothing at all.
* A built-in name cannot be taken over: a plug-in of the same name is left out, with a warning when
  the options are checked.  What ``sf`` means must not depend on what else is installed, nor how
  soon a node is there: only for other names are the installed distributions looked through.
* Two distributions that claim one name are an error when that name is loaded, since which of them
  came first would be chance.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Final, cast

from isthmus.cooperation.api import CooperationAlgorithm, Port
from isthmus.errors import AlgorithmError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint, EntryPoints

__all__ = ["GROUP", "Alone", "check_options", "load", "names"]

GROUP: Final = "isthmus.algorithms"

_BUILT_IN: Final = {
    "none": "isthmus.cooperation.registry:Alone",
    "pf": "isthmus.cooperation.publication_flooding.algorithm:PublicationFlooding",
    "sf": "isthmus.cooperation.subscription_flooding.algorithm:SubscriptionFlooding",
    "routed-tree": "isthmus.cooperation.tree.routed:RoutedTree",
    "skipgraph": "isthmus.cooperation.skipgraph.algorithm:SkipGraph",
    "tree": "isthmus.cooperation.tree.algorithm:SpanningTree",
    "topic-tree": "isthmus.cooperation.topic_tree.algorithm:TopicTree",
    "geo": "isthmus.cooperation.geo.algorithm:GeoGateway",
}

_log = logging.getLogger(__name__)


class Alone(CooperationAlgorithm):
    """A node by itself: no message goes to a neighbor or comes from one."""

    name = "none"


class _PortUsed(Exception):
    """An algorithm uses its port in `__init__`."""


class _NoPort:
    def __init__(self, broker_names: tuple[str, ...]) -> None:
        self.broker_names = broker_names

    def __getattr__(self, name: str) -> object:
        raise _PortUsed(name)


def not_routed(algorithm: str) -> str:
    """Why retained messages cannot go only where they are wanted."""
    return f'algorithm {algorithm!r} cannot route retained messages; write "everywhere", or use sf'


def names() -> tuple[str, ...]:
    """All names that `load` knows: the built-in ones, then those of plug-ins in order."""
    others = _entry_points().names - _BUILT_IN.keys()
    return (*_BUILT_IN, *sorted(others))


def check_options(
    name: str, options: Mapping[str, object], broker_names: tuple[str, ...] = ()
) -> None:
    """Let the algorithm judge its own keys, without a node; raises its `ValueError`.

    `broker_names`: of the several brokers that the node has.
    """
    for entry in _plugins(name) if name in _BUILT_IN else ():
        _log.warning(
            "algorithm %r is built in; the one of %s is ignored", name, _distribution(entry)
        )
    try:
        load(name)(cast("Port", _NoPort(broker_names)), options)
    except _PortUsed:
        return  # only a node can tell


def load(name: str) -> type[CooperationAlgorithm]:
    """The algorithm's class; `AlgorithmError` if there is none, or the plug-in is broken."""
    if name in _BUILT_IN:
        module, _, attribute = _BUILT_IN[name].partition(":")
        built_in: type[CooperationAlgorithm] = getattr(import_module(module), attribute)
        return built_in
    plugins = _plugins(name)
    if not plugins:
        raise AlgorithmError(name, "is not known", names())
    if len(plugins) > 1:
        claimants = " and ".join(sorted(_distribution(entry) for entry in plugins))
        raise AlgorithmError(name, f"is claimed by {claimants}; uninstall all but one")
    return _load_plugin(plugins[0])


def _entry_points() -> EntryPoints:
    from importlib.metadata import entry_points  # takes long to import

    return entry_points(group=GROUP)


def _plugins(name: str) -> list[EntryPoint]:
    """The entry points of that name, each distribution once.

    A distribution that stands on two folders of the path is found twice; the first one counts, as
    it does for imports.
    """
    found: dict[tuple[str, str], EntryPoint] = {}
    for entry in _entry_points().select(name=name):
        found.setdefault((_distribution(entry), entry.value), entry)
    return list(found.values())


def _load_plugin(entry: EntryPoint) -> type[CooperationAlgorithm]:
    where = f"{entry.value} of {_distribution(entry)}"
    try:
        loaded: object = entry.load()
    except Exception as error:  # whatever a stranger's module raises while it is imported
        raise AlgorithmError(
            entry.name, f"{where} cannot be imported: {type(error).__name__}: {error}"
        ) from error
    if not (isinstance(loaded, type) and issubclass(loaded, CooperationAlgorithm)):
        raise AlgorithmError(entry.name, f"{where} is not a subclass of CooperationAlgorithm")
    own_name = getattr(loaded, "name", None)
    if own_name != entry.name:
        raise AlgorithmError(entry.name, f"{where} calls itself {own_name!r}; names must agree")
    return loaded


def _distribution(entry: EntryPoint) -> str:
    return "an unnamed distribution" if entry.dist is None else entry.dist.name
