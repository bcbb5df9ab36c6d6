"""Why the coefficient of Fig. 3.13 is not the thesis's: what was varied, and what came of it.

    python -m isthmus.reproduce.skipgraph.variants FOLDER

simulates §3.4.3 with one thing changed at a time, and writes ``FOLDER/skipgraph-variants.json`` and
the table between the marks of the page above the folder.

With MRF a node forwards a message to none, one or two others, as many nodes to none as to two but
for one of each topic.  How often a node's topic is published on has nothing to do with it.  So the
coefficient follows from the share q of nodes that forward once, and from x, what topics send::

    r² = var(x) / ((2 - q) E(x²) - E(x)²)
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import numpy as np

from isthmus.reproduce.docs_files import markdown
from isthmus.reproduce.skipgraph.paper import COEFFICIENTS
from isthmus.sim.bulk.graph import SkipGraph, skip_graph
from isthmus.sim.bulk.levels import Ints
from isthmus.sim.bulk.topics import equal_topics
from isthmus.sim.bulk.traversal import spread
from isthmus.sim.bulk.vectors import Vectors, drawn_vectors
from isthmus.sim.bulk.visits import Counts

__all__ = ["Variant", "coefficient_of", "variants", "write_variants"]

TOPICS: Final = 100
SUBSCRIBERS: Final = 1_000
SEED: Final = 3
NAME: Final = "skipgraph-variants.json"
PAGE: Final = "reproduce-skipgraph.md"
BEGIN, END = "<!-- variants: begin -->\n", "<!-- variants: end -->\n"
SENT: Final = np.arange(1, TOPICS + 1)


@dataclass(frozen=True, slots=True)
class Variant:
    """One change, and what it does."""

    change: str
    once: float
    """q: of subscribers that forward a message once."""
    coefficient: float

    @property
    def in_the_interval(self) -> bool:
        _, least, most = COEFFICIENTS["subscriber", "proposed"]
        return least <= self.coefficient <= most


def coefficient_of(once: float, sent: Sequence[int]) -> float:
    """By the formula above."""
    x = np.asarray(sent, float)
    rest = (2 - once) * float((x**2).mean()) - float(x.mean()) ** 2
    return float(np.sqrt(x.var() / rest))


def variants(topics: int = TOPICS, subscribers: int = SUBSCRIBERS) -> Iterator[Variant]:
    """Every one that was tried."""

    def drawn(base: int = 2, size: int = subscribers) -> Vectors:
        return drawn_vectors(SEED, 0, topics * (size + 1), base)

    def made(change: str, forwards: Counts, sent: Counts | None = None) -> Variant:
        x = np.arange(1, topics + 1) if sent is None else sent
        received = np.repeat(x, forwards.shape[1])
        sent_on = (forwards * x[:, None]).ravel()
        return Variant(
            change, float((forwards == 1).mean()), float(np.corrcoef(received, sent_on)[0, 1])
        )

    vectors = drawn()
    graph = _graph(vectors, topics, subscribers)
    plain = _forwards(graph, topics, subscribers)
    yield made("nothing", plain)
    for where, place in (("at its left end", 0.0), ("in the middle", 0.5)):
        entry = _forwards(graph, topics, subscribers, int(place * subscribers))
        yield made(f"queries enter the range {where}", entry)
    for levels in (3, 6):
        cut = SkipGraph(graph.size, graph.left[:levels], graph.right[:levels])
        yield made(f"{levels} levels above level 0 at most", _forwards(cut, topics, subscribers))
    for chance in (0.4, 0.25):
        yield made(
            f"a digit is 1 with a probability of {chance}",
            _forwards(
                _graph(_biased(len(vectors), chance), topics, subscribers), topics, subscribers
            ),
        )
    for size in (subscribers // 10, subscribers * 3):
        own = _graph(drawn(size=size), topics, size)
        yield made(f"topics of {size:,} subscribers", _forwards(own, topics, size))
    yield made("publishers send 0, 1, 2, … messages", plain, np.arange(topics))
    yield made("publishers send 2, 3, 4, … messages", plain, np.arange(2, topics + 2))
    for base in (3, 4, 5):
        own = _graph(drawn(base), topics, subscribers, base)
        yield made(f"base {base}", _forwards(own, topics, subscribers))
    for share in (0.05, 0.1, 0.2):
        yield made(
            f"{share:.0%} of the entries above level 0 missing",
            _forwards(_holed(graph, share), topics, subscribers),
        )
    thin = SkipGraph(graph.size, graph.left[1:], graph.right[1:])
    yield made("no level 1: two digits at once", _forwards(thin, topics, subscribers))


def _graph(vectors: Vectors, topics: int, subscribers: int, base: int = 2) -> SkipGraph:
    return skip_graph(vectors, base, blocks=equal_topics(topics, subscribers, 1).blocks)


def _forwards(graph: SkipGraph, topics: int, subscribers: int, entry: int | None = None) -> Counts:
    """Of each subscriber, a row for each topic; `entry` is the place where queries come in."""
    blocks = equal_topics(topics, subscribers, 1)
    publishers, of_topic = blocks.publishers()
    starts: Ints = publishers if entry is None else blocks.starts + np.int32(entry)
    found = spread(
        graph, starts, blocks.starts[of_topic], blocks.ends[of_topic], "mrf", forwards=True
    )
    subscribed = np.ones(blocks.size, bool)
    subscribed[publishers] = False
    return found.forwards[subscribed].reshape(topics, subscribers)


def _biased(count: int, chance: float) -> Vectors:
    digits = np.random.default_rng(SEED).random((count, 40)) < chance
    places = np.uint64(1) << np.arange(40, dtype=np.uint64)
    found: Vectors = (digits * places).sum(axis=1, dtype=np.uint64)
    return found


def _holed(graph: SkipGraph, share: float) -> SkipGraph:
    """Without some entries: the search for the farthest neighbor ends below them."""
    rng = np.random.default_rng(SEED)

    def without(row: Ints, nobody: int) -> Ints:
        return np.where(rng.random(graph.size) < share, np.int32(nobody), row)

    return SkipGraph(
        graph.size,
        tuple(without(row, -1) for row in graph.left),
        tuple(without(row, graph.size) for row in graph.right),
    )


def write_variants(folder: Path) -> list[Variant]:
    """The file, and the table of the page."""
    found = list(variants())
    kept = [{**asdict(each), "in_the_interval": each.in_the_interval} for each in found]
    text = json.dumps({"seed": SEED, "variants": kept}, indent=1, ensure_ascii=False)
    (folder / NAME).write_text(text + "\n", encoding="utf-8")
    rows = [
        (
            each.change,
            f"{each.once:.3f}",
            f"{each.coefficient:.4f}",
            "yes" if each.in_the_interval else "no",
        )
        for each in found
    ]
    shown = markdown(("changed", "forward once", "coefficient", "in the thesis's interval"), rows)
    page = folder.parent / PAGE
    before, begin, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if begin and end:
        page.write_text(before + BEGIN + shown + "\n" + END + after, encoding="utf-8")
    return found


if __name__ == "__main__":
    for variant in write_variants(Path(sys.argv[1])):
        print(f"{variant.change}: {variant.coefficient:.4f}")
