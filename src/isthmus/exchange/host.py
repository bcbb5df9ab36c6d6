"""What the exchange needs from its surroundings: the asyncio node, or the simulator."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from isthmus.cooperation.api import Resources
from isthmus.exchange.traffic.message import Message

if TYPE_CHECKING:
    from isthmus.exchange.link.connection import Connection

__all__ = ["Cancellable", "Channel", "Host", "StateRewrite"]


class Cancellable(Protocol):
    """A timer that has not run out."""

    def cancel(self) -> None: ...


class Channel(Protocol):
    """A byte stream to another node.

    Whoever made it was given a `Connection` for it and calls `Links.received` with what comes and,
    exactly once, `Links.lost`, also after `close` or `abort`; never from within a call of ours.
    """

    @property
    def remote(self) -> str:
        """The other end's address, for people."""
        ...

    def write(self, data: bytes) -> None: ...

    def close(self) -> None:
        """Write out what is buffered, then close."""
        ...

    def abort(self) -> None: ...

    def hold_reading(self) -> None:
        """Read nothing more for a while; what comes nevertheless is delivered."""
        ...

    def release_reading(self) -> None: ...

    def buffered_bytes(self) -> int:
        """How much has been written and not yet been taken by the network."""
        ...


class StateRewrite(Protocol):
    """A long state that is written in pieces; what was kept stays until `commit`."""

    def write(self, piece: bytes) -> None: ...

    @property
    def waiting_bytes(self) -> int:
        """How much is on its way to the disk."""
        ...

    def commit(self) -> None:
        """Put it in the place of what was kept before."""
        ...


class Host(Protocol):
    """Clock, randomness, timers, connections, the local broker, storage and the log."""

    @property
    def random(self) -> random.Random: ...

    def now(self) -> float:
        """Seconds on a clock that never goes back."""
        ...

    def wall_ms(self) -> int:
        """Milliseconds of the wall clock, for versions of retained messages only."""
        ...

    def token_bytes(self, size: int) -> bytes:
        """Unpredictable bytes, for nonces."""
        ...

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Cancellable: ...

    def wake(self) -> None:
        """Have `Exchange.flush` called soon: once what is at hand has been dealt with."""
        ...

    def dial(
        self, address: str, opened: Callable[[Channel], Connection], failed: Callable[[str], None]
    ) -> None:
        """Open a channel to `address`; one of the two is called later, never at once."""
        ...

    def resources(self) -> Resources:
        """What is free here."""
        ...

    def announce(self, datagram: bytes) -> None:
        """Send `datagram` to whoever is to be told; `Exchange.discovery` is given what comes."""
        ...

    def neighbor_joined(self, key: str) -> None:
        """A link with the neighbor `key` is up, perhaps again: `inject` may follow."""
        ...

    def neighbor_left(self, key: str) -> None:
        """The neighbor is one no more; what it has sent is still to be published."""
        ...

    def inject(
        self,
        message: Message,
        key: str,
        done: Callable[[], None] | None,
        kept: Callable[[], None] | None = None,
    ) -> bool:
        """Publish `message` at the local broker.

        Messages of one `key` keep their order.  `done` is called when the broker has acknowledged
        it (at once if its QoS has no acknowledgment).  False if it had to be dropped, which is
        allowed at QoS 0 only, and never for a retained message.  `kept` is called if it is on disk
        before (`isthmus.exchange.apart`); then `done` is called only if somebody needs to know.
        """
        ...

    def set_broker_apart(self, key: str) -> bool:
        """Put on disk what waits for the broker of `key`, now and from now on, until nothing does.

        False if that cannot be, or all of it is there.
        """
        ...

    def publish_left(self, key: str) -> None:
        """What waits on disk for the broker, of a neighbor of an earlier life, is to be sent."""
        ...

    def give_up_injected(self, key: str, size: int) -> int:
        """Be done with the oldest messages at QoS 1 and 2 that the broker has not been sent.

        `size` bytes of them (`Message.cost` and `IN_HAND_BYTES`), as far as there are so many; of
        retained messages the newest of a topic stays.  How many they were.
        """
        ...

    def inject_plain(self, topics: Sequence[bytes], payloads: Sequence[bytes], key: str) -> int:
        """`inject` for messages at QoS 0, not retained, without properties; how many dropped."""
        ...

    def ask_retained(
        self, topics: Sequence[bytes], answer: Callable[[Mapping[bytes, bytes | None] | None], None]
    ) -> None:
        """Ask the local broker which retained messages it has on these topics.

        `answer` is called later, never at once: when the broker has told, which may take as long
        as it is away, with the payload of each topic that has one, None for a topic that the node
        may not read; or with None if the broker cannot be asked.
        """
        ...

    def take_from_broker(self) -> None:
        """The node runs, and ``source = "broker"``: take what `want` says from now on."""
        ...

    def want(self, added: Sequence[str], removed: Sequence[str]) -> None:
        """Filters that neighbors want, with ``source = "broker"``, and that they no longer do."""
        ...

    def stop_taking(self) -> None:
        """Take nothing more from the broker."""
        ...

    @property
    def keeps_state(self) -> bool:
        """Whether `save_state` and `append_state` keep anything over a restart."""
        ...

    def load_state(self, name: str, version: int) -> bytes | None:
        """What was kept under `name`, in the form of `isthmus.exchange.kept_records`.

        What is damaged in it is told here and left to be found; what is not of that name and
        version is refused: told, kept aside, and None.
        """
        ...

    def save_state(self, name: str, state: bytes) -> None:
        """Keep `state` in place of what was kept under `name`; all of it or nothing."""
        ...

    def append_state(self, name: str, more: bytes) -> None:
        """Add to what is kept under `name`; a crash may leave only a part of it."""
        ...

    def rewrite_state(self, name: str) -> StateRewrite:
        """Write anew what is kept under `name`, piece by piece; see `StateRewrite`."""
        ...

    def spools(self) -> Mapping[str, int]:
        """The files that earlier lives have written by `write_spool`, with their sizes."""
        ...

    def load_spool(self, file: str, size: int) -> bytes:
        """The beginning of such a file, at once; less or nothing if it cannot be read."""
        ...

    def write_spool(self, file: str, offset: int, data: bytes, done: Callable[[str], None]) -> None:
        """Write beside the loop, each after those before.

        `done` is told later, never at once, why it could not be; nothing if a crash of this process
        cannot undo it.  What could not be written may be there in part.
        """
        ...

    def read_spool(
        self, file: str, offset: int, size: int, done: Callable[[bytes | None], None]
    ) -> None:
        """Likewise; less if there is less, or never will be; None if it may be read later."""
        ...

    def drop_spool(self, file: str) -> None:
        """Remove it, after what was to be written or read before."""
        ...

    def log(self, level: str, event: str, **fields: object) -> None: ...
