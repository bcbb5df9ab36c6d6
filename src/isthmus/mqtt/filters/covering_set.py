"""Sets of filters: which member covers a filter, and which members a filter covers.

What covering means, and why these tests are exact, is said in `isthmus.mqtt.filters.covering`.

A set is a trie with one node per level.  Looking for what covers *b* follows, for each level of
*b*, the literal and the ``+`` branch; listing what *b* covers follows only what *b* leads to.  With
many ``+`` either may visit a large part of the trie (*k* levels, each ``+`` or ``a``, are 2^k
paths, all of which lead to ``a/a/a``), so who asks says how many steps it may take, or goes on with
it later.  Nothing recurses: a filter may have 65,536 levels.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from isthmus.mqtt.filters.covering import normal_form, split_open

__all__ = ["CoveringSet", "Steps"]


class Steps:
    """How many nodes a search may still visit."""

    __slots__ = ("left",)

    def __init__(self, left: int) -> None:
        self.left = left


class _Node:
    """One level of the trie; `closed` and `opened` hold the filters that end here, as text."""

    __slots__ = ("children", "closed", "level", "opened", "parent")

    def __init__(self, parent: _Node | None = None, level: str = "") -> None:
        self.parent = parent
        self.level = level
        self.children: dict[str, _Node] | None = None  # a leaf needs no dictionary
        self.closed: str | None = None
        self.opened: str | None = None

    def path(self) -> list[str]:
        levels = []
        node = self
        while node.parent is not None:
            levels.append(node.level)
            node = node.parent
        levels.reverse()
        return levels


class _Occurrences:
    """Where a literal stands at a position of any filter: the nodes, in order of insertion.

    With it, what ``+/x`` covers is found without a look at every first level there is.  Position 0
    is left out, since no ``+`` can stand before it.
    """

    __slots__ = ("_nodes",)

    def __init__(self) -> None:
        # Most literals occur once at a position; a dictionary for each would double the memory.
        self._nodes: dict[tuple[int, str], _Node | dict[_Node, None]] = {}

    def get(self, position: int, literal: str) -> Collection[_Node]:
        nodes = self._nodes.get((position, literal), ())
        return (nodes,) if isinstance(nodes, _Node) else nodes

    def add(self, position: int, node: _Node) -> None:
        if position == 0 or node.level == "+":
            return
        key = (position, node.level)
        nodes = self._nodes.get(key)
        if nodes is None:
            self._nodes[key] = node
        elif isinstance(nodes, _Node):
            self._nodes[key] = {nodes: None, node: None}
        else:
            nodes[node] = None

    def remove(self, position: int, node: _Node) -> None:
        if position == 0 or node.level == "+":
            return
        key = (position, node.level)
        nodes = self._nodes[key]
        if isinstance(nodes, dict):
            del nodes[node]
            if nodes:
                return
        del self._nodes[key]

    def __len__(self) -> int:
        return len(self._nodes)


class CoveringSet:
    """A set of filters that can be asked what it covers.

    Filters are kept in normal form, so ``#`` and ``+/#`` are one and the same member.
    """

    def __init__(self, topic_filters: Iterable[str] = ()) -> None:
        self._root = _Node()  # no filter ends here: `#` is kept as `+/#`
        self._occurrences = _Occurrences()
        for topic_filter in topic_filters:
            self.add(topic_filter)

    def add(self, topic_filter: str) -> bool:
        """Put a filter in; whether it was new."""
        levels, is_open = split_open(topic_filter)
        node = self._root
        for position, level in enumerate(levels):
            if node.children is None:
                node.children = {}
            child = node.children.get(level)
            if child is None:
                child = node.children[level] = _Node(node, level)
                self._occurrences.add(position, child)
            node = child
        if (node.opened if is_open else node.closed) is not None:
            return False
        if is_open:
            node.opened = normal_form(topic_filter)
        else:
            node.closed = topic_filter
        return True

    def discard(self, topic_filter: str) -> bool:
        """Take a filter out, with every node that only it needed; whether it was there."""
        levels, is_open = split_open(topic_filter)
        node = self._find(levels)
        if node is None or (node.opened if is_open else node.closed) is None:
            return False
        if is_open:
            node.opened = None
        else:
            node.closed = None
        position = len(levels)
        while node.children is None and node.closed is None and node.opened is None:
            parent = node.parent
            if parent is None:
                break
            position -= 1
            self._occurrences.remove(position, node)
            assert parent.children is not None
            del parent.children[node.level]
            if not parent.children:
                parent.children = None
            node = parent
        return True

    def _find(self, levels: list[str]) -> _Node | None:
        node = self._root
        for level in levels:
            child = None if node.children is None else node.children.get(level)
            if child is None:
                return None
            node = child
        return node

    def cover_of(self, topic_filter: str, steps: Steps) -> str | None:
        """A member that covers `topic_filter`; None if there is none, or `steps` ran out."""
        levels, is_open = split_open(topic_filter)
        length = len(levels)
        first_literal = levels[0].startswith("$")
        stack = [(0, self._root)]
        while stack and steps.left > 0:
            steps.left -= 1
            depth, node = stack.pop()
            if node.opened is not None:
                return node.opened
            if depth == length:
                if node.closed is not None and not is_open:
                    return node.closed
                continue
            if node.children is None:
                continue
            level = levels[depth]
            if level != "+" and (child := node.children.get(level)) is not None:
                stack.append((depth + 1, child))
            if not (depth == 0 and first_literal) and (child := node.children.get("+")) is not None:
                stack.append((depth + 1, child))  # on top: what is wider is more likely to cover
        return None

    def within(self, topic_filter: str) -> Iterator[str | None]:
        """The members that `topic_filter` covers, itself included; None for each step without one.

        Members may come and go between two steps.  All that are there from the beginning to the
        end are found; whether others are does not matter to who asks.
        """
        levels, is_open = split_open(topic_filter)
        length = len(levels)
        start_depth, start = self._start_within(levels)
        stack = [(start_depth, iter(start))]
        while stack:
            depth, nodes = stack[-1]
            node = next(nodes, None)
            if node is None:
                stack.pop()
                continue
            yield None
            if depth == start_depth and not _is_within(node, levels):
                continue
            if depth == 1 and levels[0] == "+" and node.level.startswith("$"):
                continue
            if depth >= length:
                if node.closed is not None:
                    yield node.closed
                if node.opened is not None and is_open:
                    yield node.opened
                if not is_open:
                    continue
            if node.children is None:
                continue
            if depth < length and levels[depth] != "+":
                child = node.children.get(levels[depth])
                if child is not None:
                    stack.append((depth + 1, iter((child,))))
            else:
                stack.append((depth + 1, iter(list(node.children.values()))))

    def _start_within(self, levels: list[str]) -> tuple[int, Sequence[_Node]]:
        """Where the walk for `levels` begins: a depth, and nodes there that may be within.

        That is the root, unless beyond the first ``+`` stands a literal that is rarer than the
        ways that lead through this ``+``: then the walk begins where that literal stands.
        """
        from_root = 0, (self._root,)
        if "+" not in levels:
            return from_root
        plus_at = levels.index("+")
        crossing = self._find(levels[:plus_at])
        if crossing is None or crossing.children is None:
            return 0, ()
        depth, rarest = 0, None
        fewest = len(crossing.children)
        for position in range(plus_at + 1, len(levels)):
            if levels[position] != "+":
                nodes = self._occurrences.get(position, levels[position])
                if len(nodes) < fewest:
                    depth, rarest, fewest = position + 1, nodes, len(nodes)
        if rarest is None:
            return from_root
        return depth, list(rarest)

    def dismantle(self) -> Iterator[None]:
        """Take everything out, node by node, so that no single step takes long."""
        stack = [self._root]
        self._root, self._occurrences = _Node(), _Occurrences()
        while stack:
            node = stack.pop()
            if node.children is not None:
                children, node.children = node.children, None
                while children:
                    child = children.popitem()[1]
                    child.parent = None
                    stack.append(child)
                    yield


def _is_within(node: _Node, levels: list[str]) -> bool:
    """Whether the node's path is within `levels`, as far as it goes."""
    path = node.path()
    if path and levels[0] == "+" and path[0].startswith("$"):
        return False
    return all(wanted in ("+", level) for wanted, level in zip(levels, path, strict=False))
