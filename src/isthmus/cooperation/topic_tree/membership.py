"""Who wants and publishes what: this node, and each neighbor as far as it has told.

A neighbor tells all of it when its link comes up, between ``begin`` and ``end``, and then what
changes.  What it told before counts until it has told all anew, so an outage loses nothing.  Each
such telling is a `Member` of its own: ``end`` puts the new one in the place of the old one at once,
however much there is, and what is left of the old one is taken out of the tables bit by bit
(`work`).

Bounds: `MAX_FILTERS` and `MAX_TOPICS` of each node, `MAX_BYTES` of each, and `MAX_RETIRED`.  Who
wants more says that it wants everything, and topics beyond the bound are not told: both cost
messages or trees, and lose nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Set
from typing import Final

from isthmus.cooperation.topic_tree.messages import News
from isthmus.errors import RemoteProtocolError
from isthmus.mqtt.filters.covering_set import Steps
from isthmus.mqtt.filters.index import FilterIndex

__all__ = ["MAX_BYTES", "MAX_FILTERS", "MAX_TOPICS", "Member", "Membership"]

MAX_FILTERS: Final = 20_000
MAX_TOPICS: Final = 10_000
MAX_BYTES: Final = 2 << 20
MAX_RETIRED: Final = 4
"""Of one neighbor: tellings that do not count any more and are not all taken out yet."""
MAX_STEPS: Final = 250
"""A topic whose members take longer to find goes to everybody.  Those of hundreds of topics are
looked for in a turn, so that must not take long even with filters that were made for it."""


class Member:
    """What one node wants and publishes, as it has told once."""

    __slots__ = ("_bytes", "filters", "name", "topics")

    def __init__(self, name: str) -> None:
        self.name = name
        self.filters: dict[str, None] = {}
        self.topics: dict[str, None] = {}
        self._bytes = {True: 0, False: 0}

    def names(self, publish: bool) -> dict[str, None]:
        return self.topics if publish else self.filters

    def has_room(self, name: str, publish: bool) -> bool:
        most = MAX_TOPICS if publish else MAX_FILTERS
        room = self._bytes[publish] + len(name.encode()) <= MAX_BYTES
        return room and len(self.names(publish)) < most

    def put(self, name: str, publish: bool) -> bool:
        names = self.names(publish)
        if name in names:
            return False
        names[name] = None
        self._bytes[publish] += len(name.encode())
        return True

    def take(self, name: str, publish: bool) -> bool:
        names = self.names(publish)
        if name not in names:
            return False
        del names[name]
        self._bytes[publish] -= len(name.encode())
        return True


class Membership:
    """All of them, and which nodes a topic concerns."""

    def __init__(self, here: str) -> None:
        self._index: FilterIndex[Member] = FilterIndex()
        self._publishers: dict[str, dict[Member, None]] = {}
        self._members = {here: Member(here)}
        self._telling: dict[str, Member] = {}
        """Of neighbors that are between ``begin`` and ``end``."""
        self._retired: deque[Member] = deque()

    @property
    def told(self) -> Set[str]:
        """Nodes that have told all of it, this one included."""
        return self._members.keys()

    @property
    def topics(self) -> Iterable[str]:
        """That somebody publishes on."""
        return self._publishers

    @property
    def unfinished(self) -> bool:
        """Whether there is something left for `work`."""
        return bool(self._retired)

    def member(self, name: str) -> Member | None:
        return self._members.get(name)

    def wanting(self, topic: str) -> set[str] | None:
        """Nodes that want it; None if it takes too long to find them."""
        matched = self._index.match_within(topic, Steps(MAX_STEPS))
        return None if matched is None else self._current(matched)

    def publishing(self, topic: str) -> set[str]:
        return self._current(self._publishers.get(topic, ()))

    def _current(self, members: Iterable[Member]) -> set[str]:
        return {each.name for each in members if self._members.get(each.name) is each}

    # ---- what changes --------------------------------------------------------------------

    def begin(self, name: str) -> None:
        if sum(each.name == name for each in self._retired) > MAX_RETIRED:
            raise RemoteProtocolError(f"neighbor {name} tells all again and again")
        self._retire(self._telling.pop(name, None))
        self._telling[name] = Member(name)

    def end(self, name: str) -> None:
        told = self._telling.pop(name, None)
        if told is None:
            raise RemoteProtocolError(f"neighbor {name} ends what it has not begun to tell")
        self._retire(self._members.get(name))
        self._members[name] = told

    def gone(self, name: str) -> None:
        self._retire(self._telling.pop(name, None))
        self._retire(self._members.pop(name, None))

    def heard(self, name: str, news: News) -> bool:
        """Whether it is of effect already."""
        telling = self._telling.get(name)
        member = telling or self._members.get(name)
        if member is None:
            raise RemoteProtocolError(f"neighbor {name} tells news before it has told all")
        for each in news.names:
            if news.begins and not member.has_room(each, news.publish):
                raise RemoteProtocolError(f"neighbor {name} wants or publishes more than it may")
            self.change(member, each, publish=news.publish, begins=news.begins)
        return telling is None

    def change(self, member: Member, name: str, *, publish: bool, begins: bool) -> None:
        """A member wants the filter, or publishes on the topic; or does not any more."""
        if not (member.put if begins else member.take)(name, publish):
            return
        if not publish:
            (self._index.add if begins else self._index.discard)(name, member)
        elif begins:
            self._publishers.setdefault(name, {})[member] = None
        else:
            publishers = self._publishers[name]
            del publishers[member]
            if not publishers:
                del self._publishers[name]

    def _retire(self, member: Member | None) -> None:
        if member is not None:
            self._retired.append(member)

    def work(self, steps: int) -> None:
        """Take out some of what does not count any more."""
        while self._retired and steps > 0:
            member = self._retired[0]
            for publish in (False, True):
                names = member.names(publish)
                while names and steps > 0:
                    steps -= 1
                    # Backwards: a dictionary that is emptied from its front is slow.
                    self.change(member, next(reversed(names)), publish=publish, begins=False)
            if not member.filters and not member.topics:
                self._retired.popleft()
