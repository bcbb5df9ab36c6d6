"""Why the coefficient of Fig. 3.13 is not the thesis's: what was varied, and what came of it.

    python -m isthmus.reproduce.skipgraph.variants FOLDER

simulates §3.4.3 with one thing changed at a time, and writes ``FOLDER/skipgraph-variants.json`` and
the table between the marks of the page above the folder.

With MRF a node forwards a message to none, one or two others, as many nodes to none as to two but
for one of each topic.  How often a node's topic is published on has nothing to do with it.  So the
coefficient follows from the share q of nodes that forward once, and from x, what topics send::

    r² = var(x) / ((2 - q) E(x²) - E(x)²)

MRF leaves nothing to choose (Fig. 4.3): who forwards to whom is a function of the tables.  So it is
the tables that must have been different, which shows in two other figures as well.  Beside a base
stands how long Scribe's paths are in it, of which the thesis has 16 hops (Fig. 3.10); beside other
tables, how long the paths of pattern alpha are with them, of which it says that they are
distributed as Scribe's (Fig. 3.11).
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import numpy as np

from isthmus.bench.report.setup import machine
from isthmus.reproduce.docs_files import markdown
from isthmus.reproduce.skipgraph.paper import COEFFICIENTS
from isthmus.reproduce.skipgraph.paths import scribe_paths
from isthmus.reproduce.skipgraph.points import drawn_members
from isthmus.sim.bulk.graph import SkipGraph, skip_graph
from isthmus.sim.bulk.levels import Ints
from isthmus.sim.bulk.patterns import PATTERNS
from isthmus.sim.bulk.scribe import scribe_trees
from isthmus.sim.bulk.topics import equal_topics
from isthmus.sim.bulk.traversal import spread
from isthmus.sim.bulk.vectors import Vectors, drawn_vectors
from isthmus.sim.bulk.visits import Counts

__all__ = ["Variant", "coefficient_of", "needed_once", "variants", "write_variants"]

TOPICS: Final = 100
SUBSCRIBERS: Final = 1_000
SHARES: Final = (0.1, 0.5, 0.9)
SCRIBE_NODES: Final = 100_000
SCRIBE_SUBSCRIBERS: Final = 2_000
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
    scribe_hops: float | None = None
    """Of Scribe among 100,000 nodes, where it is another base."""
    alpha: tuple[int, ...] | None = None
    """Pattern alpha: hops at `SHARES` of the pairs, where the tables are others."""

    @property
    def in_the_interval(self) -> bool:
        _, least, most = COEFFICIENTS["subscriber", "proposed"]
        return least <= self.coefficient <= most


def coefficient_of(once: float, sent: Sequence[int]) -> float:
    """By the formula above."""
    x = np.asarray(sent, float)
    rest = (2 - once) * float((x**2).mean()) - float(x.mean()) ** 2
    return float(np.sqrt(x.var() / rest))


def needed_once(coefficient: float) -> float:
    """The share of nodes that forward once which a coefficient means."""
    x = np.asarray(SENT, float)
    rest = float(x.var()) / coefficient**2 + float(x.mean()) ** 2
    return 2 - rest / float((x**2).mean())


def variants(topics: int = TOPICS, subscribers: int = SUBSCRIBERS) -> Iterator[Variant]:
    """Every one that was tried."""

    def drawn(base: int = 2, size: int = subscribers) -> Vectors:
        return drawn_vectors(SEED, 0, topics * (size + 1), base)

    def made(
        change: str,
        forwards: Counts,
        sent: Counts | None = None,
        *,
        scribe_hops: float | None = None,
        alpha: SkipGraph | None = None,
    ) -> Variant:
        x = np.arange(1, topics + 1) if sent is None else sent
        received = np.repeat(x, forwards.shape[1])
        sent_on = (forwards * x[:, None]).ravel()
        return Variant(
            change,
            float((forwards == 1).mean()),
            float(np.corrcoef(received, sent_on)[0, 1]),
            scribe_hops,
            None if alpha is None else _alpha_hops(alpha, topics, subscribers),
        )

    def of_alpha(base: int = 2, vectors: Vectors | None = None) -> SkipGraph:
        blocks = equal_topics(topics, subscribers, 0)
        own = drawn_vectors(SEED, 0, blocks.size, base) if vectors is None else vectors
        return skip_graph(own[: blocks.size], base, blocks=blocks.blocks)

    vectors = drawn()
    graph = _graph(vectors, topics, subscribers)
    plain = _forwards(graph, topics, subscribers)
    alpha = of_alpha()
    yield made("nothing", plain, scribe_hops=_scribe_hops(2), alpha=alpha)
    for where, place in (("at its left end", 0.0), ("in the middle", 0.5)):
        entry = _forwards(graph, topics, subscribers, int(place * subscribers))
        yield made(f"queries enter the range {where}", entry)
    for levels in (3, 6):
        low, low_alpha = (_levels(each, 0, levels) for each in (graph, alpha))
        forwards = _forwards(low, topics, subscribers)
        yield made(f"{levels} levels above level 0 at most", forwards, alpha=low_alpha)
    for chance in (0.4, 0.25):
        biased = _biased(len(vectors), chance)
        forwards = _forwards(_graph(biased, topics, subscribers), topics, subscribers)
        own = of_alpha(vectors=biased)
        yield made(f"a digit is 1 with a probability of {chance}", forwards, alpha=own)
    for size in (subscribers // 10, subscribers * 3):
        own = _graph(drawn(size=size), topics, size)
        yield made(f"topics of {size:,} subscribers", _forwards(own, topics, size))
    yield made("publishers send 0, 1, 2, … messages", plain, np.arange(topics))
    yield made("publishers send 2, 3, 4, … messages", plain, np.arange(2, topics + 2))
    for base in (3, 4, 5):
        own = _graph(drawn(base), topics, subscribers, base)
        forwards, hops = _forwards(own, topics, subscribers), _scribe_hops(base)
        yield made(f"base {base}", forwards, scribe_hops=hops, alpha=of_alpha(base))
    for share in (0.05, 0.08, 0.1, 0.12, 0.15, 0.2):
        forwards = _forwards(_holed(graph, share), topics, subscribers)
        change = f"{share:.0%} of the entries above level 0 missing"
        yield made(change, forwards, alpha=_holed(alpha, share))
    thin, thin_alpha = (_levels(each, 1, 64) for each in (graph, alpha))
    forwards = _forwards(thin, topics, subscribers)
    yield made("no level 1: two digits at once", forwards, alpha=thin_alpha)


def _levels(graph: SkipGraph, first: int, end: int) -> SkipGraph:
    return SkipGraph(graph.size, graph.left[first:end], graph.right[first:end])


def _alpha_hops(graph: SkipGraph, topics: int, members: int) -> tuple[int, ...]:
    """One in a hundred publishes, as in pattern alpha."""
    publishing = max(1, members // 100)
    blocks = equal_topics(topics, members - publishing, publishing)
    publishers, of_topic = blocks.publishers()
    ranges = publishers, blocks.starts[of_topic], blocks.ends[of_topic]
    return _at_shares(spread(graph, *ranges, "mrf").at_hops)


def _at_shares(at_hops: Counts) -> tuple[int, ...]:
    reached = at_hops.cumsum() / at_hops.sum()
    return tuple(int(np.searchsorted(reached, share)) for share in SHARES)


def scribe_alpha_hops() -> tuple[int, ...]:
    """Scribe's in pattern alpha, among 100,000 nodes."""
    pattern = PATTERNS["alpha"]
    count = SCRIBE_NODES // pattern.size
    members = drawn_members(SEED, SCRIBE_NODES, SCRIBE_NODES).reshape(count, pattern.size)
    subscribers, publishers = np.split(members, [pattern.subscribers], axis=1)
    return _at_shares(scribe_paths(SCRIBE_NODES, SEED, subscribers, publishers).at_hops)


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


def _scribe_hops(base: int) -> float:
    """From a publisher that is not the root to a subscriber, of topics of one each."""
    everybody = np.arange(SCRIBE_SUBSCRIBERS, dtype=np.int32)
    subscribers = drawn_members(SEED, SCRIBE_NODES, SCRIBE_SUBSCRIBERS)
    vectors = drawn_vectors(SEED, 0, SCRIBE_NODES, base)
    ids = drawn_vectors(SEED + 1, 0, SCRIBE_SUBSCRIBERS, base)
    return 1 + float(scribe_trees(vectors, subscribers, everybody, ids, base).depth.mean())


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
    thesis = COEFFICIENTS["subscriber", "proposed"]
    scribes = scribe_alpha_hops()
    document = {
        "machine": machine(),
        "time": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "seed": SEED,
        "thesis": {"coefficient": thesis, "once": [needed_once(each) for each in thesis]},
        "scribe_alpha": scribes,
        "variants": kept,
    }
    text = json.dumps(document, indent=1, ensure_ascii=False)
    (folder / NAME).write_text(text + "\n", encoding="utf-8")
    once, least, most = (needed_once(each) for each in thesis)
    rows = [
        (
            "*the thesis*",
            f"{once:.3f} ({least:.3f} to {most:.3f})",
            f"{thesis[0]:.4f}",
            "yes",
            "16",
            "as Scribe's",
        ),
        *(
            (
                each.change,
                f"{each.once:.3f}",
                f"{each.coefficient:.4f}",
                "yes" if each.in_the_interval else "no",
                "" if each.scribe_hops is None else f"{each.scribe_hops:.1f}",
                "" if each.alpha is None else ", ".join(map(str, each.alpha)),
            )
            for each in found
        ),
    ]
    columns = (
        "changed",
        "forward once",
        "coefficient",
        "in the thesis's interval",
        "Scribe's hops",
        f"alpha, hops at 10, 50, 90 % (Scribe {', '.join(map(str, scribes))})",
    )
    shown = markdown(columns, rows)
    page = folder.parent / PAGE
    before, begin, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if begin and end:
        page.write_text(before + BEGIN + shown + "\n" + END + after, encoding="utf-8")
    return found


if __name__ == "__main__":
    for variant in write_variants(Path(sys.argv[1])):
        print(f"{variant.change}: {variant.coefficient:.4f}")
