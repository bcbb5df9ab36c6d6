"""Routing in the tree by advertisements (Overlays §5.1, Fig. 5).

Who publishes on a topic *advertises* it in the whole tree, the paper's ``$PUBADV``.  Of each
topic a node knows then

    SRT   the neighbors over which somebody publishes on it: where subscriptions go
    PRT   of the neighbors that it has advertised it to, whether anybody behind them wants it

Whoever is advertised a topic answers: that it is wanted, as soon as that is known, here or from
behind; that it is not, when all behind have said so.  If that changes, it says so again: so a
subscription follows the SRT whether it comes before the advertisement or after it.  Wildcards are
matched where they are, with topics that are advertised.

A message goes to every neighbor that has not said that it is not wanted.  So the first ones on a
topic are flooded, as well as those on topics that nobody knows of, and nothing waits or is lost
while tables fill.  All tables are of one tree: with the next one they begin anew.

Bounds: of more than `MAX_TOPICS` topics nothing is known, so they are flooded.  What is wanted here
by now, and what is advertised in another tree, is worked off `STEP` topics at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from isthmus.cooperation.tree.messages import MAX_TOPICS as MAX_NAMED
from isthmus.cooperation.tree.messages import Advertise, Want

__all__ = ["Advertising", "TopicTables"]

MAX_TOPICS: Final = 10_000
STEP: Final = 300
CHUNK_BYTES: Final = 32_768
"""Of topics in one message, roughly."""


@dataclass(slots=True)
class TopicTables:
    """What is known of one topic."""

    srt: set[str] = field(default_factory=set)
    """Neighbors that have advertised it."""
    prt: dict[str, bool] = field(default_factory=dict)
    """What neighbors have answered."""
    advertised: set[str] = field(default_factory=set)
    """Neighbors that it was advertised to."""
    answered: dict[str, bool] = field(default_factory=dict)
    """What they were told who have advertised it."""
    here: bool = False
    """Whether it is wanted here, whoever else wants it."""


class Advertising:
    """The tables of one node, for the tree in use."""

    def __init__(
        self,
        send: Callable[[str, Advertise | Want], None],
        is_wanted_here: Callable[[str], bool],
    ) -> None:
        self._send = send
        self._is_wanted_here = is_wanted_here
        self._label = b""
        self._neighbors: tuple[str, ...] = ()
        self._own: dict[str, None] = {}
        """Topics that local clients publish on."""
        self._topics: dict[str, TopicTables] = {}
        self._doubtful: dict[str, None] = {}
        """Topics of which local clients may want another than before, or that are to be advertised
        in another tree, in order."""
        self._changed: set[str] = set()
        self._said: dict[tuple[str, bool], dict[str, bool]] = {}
        """To be sent: to whom, whether it is an answer, and what of which topics."""

    @property
    def tables(self) -> Mapping[str, TopicTables]:
        return self._topics

    @property
    def published(self) -> Collection[str]:
        return self._own.keys()

    def goes_to(self, topic: str, neighbor: str) -> bool:
        """Whether a message on `topic` is to be sent to `neighbor`."""
        tables = self._topics.get(topic)
        return tables is None or tables.prt.get(neighbor) is not False

    # ---- what happens; each returns topics whose messages may go elsewhere now -----------

    def reset(self, label: bytes, neighbors: Sequence[str]) -> bool:
        """Another tree, in which nothing is known yet; whether there is work."""
        self._label = label
        self._neighbors = tuple(neighbors)
        self._topics.clear()
        self._doubtful = dict(self._own)
        self._said.clear()
        return bool(self._doubtful)

    def renew(self, neighbor: str) -> set[str]:
        """Its link was away: what was said meanwhile may be lost."""
        if neighbor in self._neighbors:
            for topic, tables in list(self._topics.items()):
                tables.srt.discard(neighbor)
                tables.advertised.discard(neighbor)
                tables.answered.pop(neighbor, None)
                if tables.prt.pop(neighbor, None) is False:
                    self._changed.add(topic)
                self._look(topic)
        return self._flush()

    def begun(self, topics: Iterable[str]) -> None:
        """Local clients publish on these."""
        for topic in topics:
            if len(self._own) < MAX_TOPICS:
                self._own[topic] = None
                self._look(topic)
        self._flush()

    def ended(self, topics: Iterable[str]) -> set[str]:
        """No local client does any more."""
        for topic in topics:
            if self._own.pop(topic, self) is not self:
                self._look(topic)
        return self._flush()

    def advertised(self, neighbor: str, message: Advertise) -> set[str]:
        if message.label == self._label and neighbor in self._neighbors:
            for topic in message.begun:
                if topic in self._topics or len(self._topics) < MAX_TOPICS:
                    self._tables_of(topic).srt.add(neighbor)
                    self._look(topic)
            for topic in message.ended:
                tables = self._topics.get(topic)
                if tables is not None:
                    tables.srt.discard(neighbor)
                    tables.answered.pop(neighbor, None)
                    self._look(topic)
        return self._flush()

    def wanted(self, neighbor: str, message: Want) -> set[str]:
        """An answer to an advertisement; of what was withdrawn meanwhile it says nothing."""
        if message.label == self._label:
            for topics, answer in ((message.wanted, True), (message.unwanted, False)):
                for topic in topics:
                    tables = self._topics.get(topic)
                    if tables is not None and neighbor in tables.advertised:
                        self._told(topic, tables, neighbor, answer)
        return self._flush()

    def _told(self, topic: str, tables: TopicTables, neighbor: str, answer: bool) -> None:
        if tables.prt.get(neighbor) is not answer:
            tables.prt[neighbor] = answer
            self._changed.add(topic)
            self._look(topic)

    def interest_changed(self, filters: Iterable[str]) -> bool:
        """Local clients want or do not want some of these any more; whether there is work."""
        for topic_filter in filters:
            if "+" in topic_filter or "#" in topic_filter:
                self._doubtful.update(dict.fromkeys(self._topics))
                break
            if topic_filter in self._topics:
                self._doubtful[topic_filter] = None
        return bool(self._doubtful)

    def work(self) -> bool:
        """Look at some of the topics that are doubtful; whether there are more."""
        for topic in list(self._doubtful)[:STEP]:
            del self._doubtful[topic]
            if (tables := self._topics.get(topic)) is not None:
                tables.here = self._is_wanted_here(topic)
            if tables is not None or topic in self._own:
                self._look(topic)
        self._flush()
        return bool(self._doubtful)

    # ---- conclusions ---------------------------------------------------------------------

    def _tables_of(self, topic: str) -> TopicTables:
        tables = self._topics.get(topic)
        if tables is None:
            tables = self._topics[topic] = TopicTables(here=self._is_wanted_here(topic))
        return tables

    def _look(self, topic: str) -> None:
        """Advertise and answer what follows from the tables of `topic`."""
        tables = self._tables_of(topic)
        for neighbor in self._neighbors:
            due = topic in self._own or bool(tables.srt - {neighbor})
            if due and neighbor not in tables.advertised:
                tables.advertised.add(neighbor)
                self._say(neighbor, topic, answer=False, yes=True)
            elif not due and neighbor in tables.advertised:
                tables.advertised.discard(neighbor)
                self._say(neighbor, topic, answer=False, yes=False)
                if tables.prt.pop(neighbor, None) is False:
                    self._changed.add(topic)
        for neighbor in tables.srt:
            wanted = self._is_wanted(tables, neighbor)
            if wanted is not None and tables.answered.get(neighbor) is not wanted:
                tables.answered[neighbor] = wanted
                self._say(neighbor, topic, answer=True, yes=wanted)
        if topic not in self._own and not tables.srt:
            del self._topics[topic]

    def _is_wanted(self, tables: TopicTables, by: str) -> bool | None:
        """Whether anybody but who is behind `by` wants it; None if that is not known."""
        behind = [tables.prt.get(each) for each in self._neighbors if each != by]
        if tables.here or True in behind:
            return True
        return None if None in behind else False

    def _say(self, neighbor: str, topic: str, *, answer: bool, yes: bool) -> None:
        self._said.setdefault((neighbor, answer), {})[topic] = yes

    def _flush(self) -> set[str]:
        said, self._said = self._said, {}
        for (neighbor, answer), topics in said.items():
            kind = Want if answer else Advertise
            for some in _chunks(list(topics)):
                yes = tuple(topic for topic in some if topics[topic])
                no = tuple(topic for topic in some if not topics[topic])
                self._send(neighbor, kind(self._label, yes, no))
        changed, self._changed = self._changed, set()
        return changed


def _chunks(topics: Iterable[str]) -> Iterable[list[str]]:
    some: list[str] = []
    size = 0
    for topic in topics:
        some.append(topic)
        size += len(topic) + 4
        if size > CHUNK_BYTES or len(some) == MAX_NAMED:
            yield some
            some, size = [], 0
    if some:
        yield some
