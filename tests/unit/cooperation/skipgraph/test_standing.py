r"""Epochs: who stands in the graph, and since when.

a ─── b      everybody tells everybody how it stands; here what `a` makes of it
 \   /
  ─ c
"""

from __future__ import annotations

import pytest

from isthmus.cooperation.skipgraph import standing as module
from isthmus.cooperation.skipgraph.keys import Kind, key_of
from isthmus.cooperation.skipgraph.messages import Fit, InEpoch, Insert, Ready
from isthmus.cooperation.skipgraph.standing import Standing

LABEL, OTHER = b"a label.", b"another."
NODES = frozenset("abc")


def stood(*, base: int = 2, mine: int = 1) -> Standing:
    """All are fit: the epoch has begun."""
    standing = Standing("a", base)
    assert not standing.stand(Fit(LABEL, mine), NODES)
    assert not standing.heard("b", Fit(LABEL, 2))
    assert standing.heard("c", Fit(LABEL, 3))
    return standing


def test_an_epoch_begins_when_all_are_fit_and_settles_when_all_are_ready() -> None:
    standing = stood()
    assert standing.phase.name == "JOINING"
    assert not standing.is_ready("b")
    assert not standing.is_ready("a")
    assert standing.is_ready("c")
    assert standing.phase.name == "SETTLED"
    assert not standing.is_ready("c"), "it is settled once"


def test_everybody_calls_it_by_the_same_name() -> None:
    other = Standing("c", 2)
    other.heard("a", Fit(LABEL, 1))
    other.heard("b", Fit(LABEL, 2))
    other.stand(Fit(LABEL, 3), NODES)
    assert other.epoch == stood().epoch


@pytest.mark.parametrize("change", [{"base": 3}, {"mine": 9}])
def test_another_base_or_nonce_is_another_epoch(change: dict[str, int]) -> None:
    assert stood(**change).epoch != stood().epoch


@pytest.mark.parametrize("fit", [Fit(LABEL, 0), Fit(OTHER, 2)])
def test_it_is_over_with_the_first_who_is_not_fit(fit: Fit) -> None:
    standing = stood()
    assert standing.heard("b", fit)
    assert standing.phase.name == "OPEN"
    assert standing.heard("b", Fit(LABEL, 5))
    assert standing.phase.name == "JOINING"


def test_it_is_over_when_a_link_is_lost_and_when_the_tree_is_another_one() -> None:
    standing = stood()
    assert standing.gone("c")
    assert standing.phase.name == "OPEN"
    standing = stood()
    assert standing.stand(Fit(OTHER, 1), NODES)
    assert standing.phase.name == "OPEN"


def test_a_new_nonce_is_a_new_epoch_at_once() -> None:
    standing = stood()
    before = standing.epoch
    standing.is_ready("b")
    assert standing.heard("c", Fit(LABEL, 4))
    assert standing.epoch not in (b"", before)
    for name in "abc":
        standing.is_ready(name)
    assert standing.phase.name == "SETTLED"


def test_a_node_alone_has_no_graph() -> None:
    standing = Standing("a", 2)
    assert not standing.stand(Fit(LABEL, 1), frozenset("a"))
    assert standing.phase.name == "OPEN"


def test_what_is_said_early_waits_and_what_is_late_is_forgotten() -> None:
    standing = Standing("a", 2)
    standing.stand(Fit(LABEL, 1), NODES)
    standing.heard("b", Fit(LABEL, 2))
    epoch = stood().epoch
    late = InEpoch(b"old ones", Ready())
    early = InEpoch(epoch, Insert(0, key_of("t", Kind.SUBSCRIBER, "b")))
    still_to_come = InEpoch(b"next one", Ready())
    for said in (late, early, still_to_come):
        assert standing.is_early("b", said, 100)
    standing.heard("c", Fit(LABEL, 3))
    assert standing.take_early() == [("b", early)]
    standing.heard("b", Fit(LABEL, 7))
    assert standing.take_early() == []


def test_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_EARLY", 3)
    standing = Standing("a", 2)
    said = InEpoch(b"an epoch", Ready())
    assert [standing.is_early("b", said, 9) for _ in range(5)] == [True, True, True, False, True]


def test_what_waits_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_EARLY_BYTES", 3_000)
    standing = Standing("a", 2)
    said = InEpoch(b"an epoch", Ready())
    assert [standing.is_early("b", said, 1_000) for _ in range(4)] == [True, True, False, True]
    assert standing.is_early("c", said, 1_000), "each has its own"
    standing.gone("b")
    assert [standing.is_early("b", said, 1_000) for _ in range(3)] == [True, True, False]
