"""The prototype's experiment: from SUBSCRIBE until the retained message, with and without gateway.

    direct    client ───────────── D ────────────── broker
    gateway   client ── d' ── gateway ───── d ───── broker      D = d + d'

The paper measured 56.9 ms without and 113.0 ms with a gateway, 100 times each (Geo §III).  Here all
is on one machine, and *ways* emulate the network by a proxy that holds bytes back for so long in
each direction; without one, it is the loopback alone.

A gateway opens a client's session with a broker when it is first needed there.  So there are two
ways to ask it:

* *open*: the client has been at that broker before, as a client has that follows its surroundings:
  a round trip from client to gateway, and one from there to the broker;
* *first*: the client is new and asks a broker for the first time: CONNECT and CONNACK between
  gateway and broker come before, hence one more of these round trips.  (On a real network TCP's
  handshake would be one more; the proxy connects at once.)

Mosquitto is told to send small packets at once (``set_tcp_nodelay``).  By default it is Nagle's
algorithm that does: what follows a SUBACK, the retained message, then waits until that is
acknowledged, which the other end's TCP may put off by 40 ms.  One network has that default, to show
it; nothing is predicted of it.

Predicted is what a way takes by the number of its round trips, added to what it takes on the
loopback alone.  Measured is each by turns, and *direct* twice: how much its two series differ is
the noise.  What a proxy adds, up to `LATE_S` each time that bytes pass it, is late, never early.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median, quantiles, stdev
from typing import Final

from isthmus.bench.rig.lines import Shape, Shapes
from isthmus.bench.rig.shaping_main import start_shaping
from isthmus.config.addresses import Address
from isthmus.processes.children import end
from isthmus.reproduce.geo.clients import PahoClient
from isthmus.reproduce.geo.gateway import running_brokers, running_gateway

__all__ = ["KINDS", "LATE_S", "LOOPBACK", "NAGLE", "WAYS", "Delays", "Network", "measure_delays"]

K: Final = 3
"""The prototype's; its broker level is 1: four brokers, in charge of a first digit each."""
LATE_S: Final = 0.0015
KINDS: Final = ("direct", "direct again", "open", "first")
TOPIC: Final = "2/1/3/temperature"
"""Of another broker than the first, which is the one that a client is greeted by."""


@dataclass(frozen=True, slots=True)
class Network:
    """One-way delays."""

    name: str
    client_gateway_s: float = 0.0
    gateway_broker_s: float = 0.0
    nagle: bool = False
    """Whether the brokers have Mosquitto's default."""

    @property
    def direct_s(self) -> float:
        return self.client_gateway_s + self.gateway_broker_s

    def round_trips_s(self, kind: str) -> float:
        """What the network alone makes of a way."""
        if kind.startswith("direct"):
            return 2 * self.direct_s
        there = 2 if kind == "open" else 4
        return 2 * self.client_gateway_s + there * self.gateway_broker_s

    def passes(self, kind: str) -> int:
        """How often bytes pass a proxy."""
        if kind.startswith("direct"):
            return 2 * bool(self.direct_s)
        there = 2 if kind == "open" else 4
        return 2 * bool(self.client_gateway_s) + there * bool(self.gateway_broker_s)


LOOPBACK: Final = Network("loopback")
NAGLE: Final = Network("loopback, Mosquitto's default", nagle=True)
WAYS: Final = (
    LOOPBACK,
    NAGLE,
    Network("gateway beside the client", 0.0, 0.028),
    Network("gateway halfway", 0.014, 0.014),
    Network("gateway beside the broker", 0.028, 0.0),
)
"""As long as the paper's 56.9 ms, there and back."""


@dataclass(frozen=True, slots=True)
class Delays:
    """What was measured on one network, in seconds, in order."""

    network: Network
    series: Mapping[str, Sequence[float]]
    """By kind."""

    def mean_s(self, kind: str) -> float:
        return mean(self.series[kind])

    def median_s(self, kind: str) -> float:
        return median(self.series[kind])

    def deviation_s(self, kind: str) -> float:
        return stdev(self.series[kind])

    def p95_s(self, kind: str) -> float:
        return quantiles(self.series[kind], n=20)[-1]

    @property
    def noise_s(self) -> float:
        """How far apart the medians of two series are that did the same."""
        return abs(self.median_s("direct") - self.median_s("direct again"))

    def extra_round_trips(self, kind: str) -> float:
        """By how many round trips of the line to the broker a way is longer than the direct one."""
        extra_s = self.median_s(kind) - self.median_s("direct")
        return extra_s / (2 * self.network.direct_s)


def measure_delays(network: Network, times: int, broker: str) -> Delays:
    """All kinds by turns, so many times each; raises `IsthmusError` if it cannot be measured."""
    with ExitStack() as exit_:
        folder = Path(exit_.enter_context(tempfile.TemporaryDirectory(prefix="isthmus-")))
        brokers = exit_.enter_context(running_brokers(broker, 4, nagle=network.nagle))
        at = {
            digit: Address(each.host, each.port)
            for digit, each in zip("0123", brokers, strict=True)
        }
        near = exit_.enter_context(_line(network.gateway_broker_s, at, folder / "near"))
        far = exit_.enter_context(_line(network.direct_s, at, folder / "far"))
        cells = {digit: [digit] for digit in at}
        gateway = exit_.enter_context(running_gateway("gateway", near, cells, K, folder))
        way = exit_.enter_context(
            _line(network.client_gateway_s, {"gateway": gateway}, folder / "client")
        )["gateway"]
        publisher = PahoClient("publisher", at[TOPIC[0]])
        exit_.callback(publisher.close)
        publisher.publish(TOPIC, b"21.5", qos=1, retain=True)
        direct = PahoClient("direct", far[TOPIC[0]])
        exit_.callback(direct.close)
        open_ = PahoClient("open", way)
        exit_.callback(open_.close)
        open_.fetch(TOPIC)
        direct.fetch(TOPIC)
        series: dict[str, list[float]] = {kind: [] for kind in KINDS}
        for number in range(times):
            series["direct"].append(direct.fetch(TOPIC))
            series["open"].append(open_.fetch(TOPIC))
            series["direct again"].append(direct.fetch(TOPIC))
            first = PahoClient(f"first-{number}", way)
            try:
                series["first"].append(first.fetch(TOPIC))
            finally:
                first.close()
    return Delays(network, series)


@contextmanager
def _line(
    delay_s: float, targets: Mapping[str, Address], folder: Path
) -> Iterator[Mapping[str, Address]]:
    """Where to dial each of `targets` over a line; without a delay there is none."""
    if not delay_s:
        yield targets
        return
    folder.mkdir()
    process, addresses = start_shaping(Shapes(Shape(delay_s)), targets, folder)
    try:
        yield addresses
    finally:
        end(process, 2.0)
