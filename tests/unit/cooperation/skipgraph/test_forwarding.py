"""The figures of the thesis, and what it says of each method."""

from __future__ import annotations

from collections import Counter
from math import comb

import pytest

from isthmus.cooperation.skipgraph.forwarding import (
    STRATEGIES,
    forward,
    messages,
    multi_range_forwarding,
    sequential,
    split_forward_broadcasting,
)
from isthmus.cooperation.skipgraph.tables import linked
from isthmus.cooperation.skipgraph.vectors import ideal_vector
from support.skip_graphs import between, broadcast, graph, numbered, passed


def test_figure_2_12_three_physical_nodes_with_several_keys() -> None:
    #   vector 00:  0  1     3
    #   vector 01:        2     4
    #   vector 10:                 5  6
    tables = graph({"a": ("00", [0, 1, 3]), "b": ("01", [2, 4]), "c": ("10", [5, 6])})
    first = messages(multi_range_forwarding(tables["a"], between(0, 6)))
    assert {node: len(hops) for node, hops in first.items()} == {"b": 2}
    b, c = first["b"]
    assert [number for number in range(7) if numbered(number) in b.keys] == [2]
    assert [number for number in range(7) if numbered(number) in c.keys] == [4, 5, 6]
    found = passed(tables, "a", between(0, 6), multi_range_forwarding)
    assert found.received == {"b": 1, "c": 1}
    assert found.hops == {"a": 0, "b": 1, "c": 2}


LETTERS = dict(zip("ABCDEFGH", (5, 20, 27, 30, 36, 40, 43, 47), strict=True))


def of_figure_4_1() -> dict[str, tuple[str, list[int]]]:
    """E is A's neighbor at level 2, C at level 1, B at level 0."""
    vectors = ("000", "100", "010", "110", "001", "101", "011", "111")
    return {
        name: (vector, [key]) for (name, key), vector in zip(LETTERS.items(), vectors, strict=True)
    }


def test_figure_4_1_sfb_divides_by_the_neighbors_keys() -> None:
    hops = split_forward_broadcasting(graph(of_figure_4_1())["A"], between(0, 50))
    assert [hop.neighbor.node for hop in hops] == ["E", "C", "B"]
    spans = [[name for name, key in LETTERS.items() if numbered(key) in hop.keys] for hop in hops]
    assert spans == [list("EFGH"), list("CD"), ["B"]]


def test_figure_4_1_mrf_divides_by_its_own_key() -> None:
    tables = graph(of_figure_4_1())
    (hop,) = multi_range_forwarding(tables["A"], between(0, 50))
    assert hop.neighbor.node == "E"
    assert numbered(LETTERS["B"]) in hop.keys
    assert numbered(LETTERS["A"]) not in hop.keys
    assert [each.neighbor.node for each in multi_range_forwarding(tables["E"], hop.keys)] == [
        "C",
        "G",
    ]


@pytest.mark.parametrize(("name", "at_depth"), [("sfb", [1, 3, 3, 1]), ("mrf", [1, 1, 2, 4])])
def test_figure_4_4_the_trees(name: str, at_depth: list[int]) -> None:
    found = passed(graph(of_figure_4_1()), "A", between(0, 50), STRATEGIES[name])
    depths = Counter(found.hops.values())
    assert [depths[depth] for depth in range(4)] == at_depth


@pytest.mark.parametrize("exponent", range(8))
def test_average_hops_on_ideal_vectors(exponent: int) -> None:
    """H_SFB = log(N) / 2, H_MRF = log(N) - 1 + 1/N (§4.1.3), as whole numbers."""
    count = 2**exponent
    tables = linked({str(at): (ideal_vector(at), [numbered(at)]) for at in range(count)})
    sfb = passed(tables, "0", between(0, count), split_forward_broadcasting)
    mrf = passed(tables, "0", between(0, count), multi_range_forwarding)
    assert 2 * sum(sfb.hops.values()) == exponent * count
    assert sum(mrf.hops.values()) == (exponent - 1) * count + 1
    depths = Counter(sfb.hops.values())
    assert depths == {depth: comb(exponent, depth) for depth in range(exponent + 1)}
    assert max(mrf.forwards.values(), default=0) <= 2


def test_sequential_goes_along_level_0_from_the_middle() -> None:
    tables = graph(of_figure_4_1())
    found = passed(tables, "D", between(0, 50), sequential)
    assert found.hops == {"A": 3, "B": 2, "C": 1, "D": 0, "E": 1, "F": 2, "G": 3, "H": 4}


@pytest.mark.parametrize("memory", [False, True])
def test_broadcasting_reaches_all_and_repeats(memory: bool) -> None:
    tables = graph(of_figure_4_1())
    found = broadcast(tables, "A", between(0, 50), memory=memory)
    assert set(found.hops) == set(LETTERS)
    assert max(found.hops.values()) <= 3
    entries = sum(len({entry.node for entry in table.others}) for table in tables.values())
    assert (found.messages < entries) if memory else (found.messages == entries)
    assert found.messages > len(LETTERS) - 1


def test_the_thesis_says_once_and_it_may_be_twice() -> None:
    """§2.2.5; see the module's docstring."""
    tables = graph(
        {"a": ("000", [10, 20, 30]), "x": ("01", [15]), "y": ("001", [25]), "z": ("1", [17, 27])}
    )
    found = passed(tables, "a", between(10, 30), multi_range_forwarding)
    assert found.received == {"x": 1, "y": 1, "z": 2}
    assert found.delivered == {"a": 1, "x": 1, "y": 1, "z": 1}


def test_a_range_without_anybody_ends() -> None:
    tables = graph({"a": ("0", [1]), "b": ("1", [9])})
    assert passed(tables, "a", between(4, 5), multi_range_forwarding).hops == {}
    assert forward(tables["a"], between(10, 12), multi_range_forwarding)[0].neighbor.node == "b"
    assert forward(tables["b"], between(10, 12), multi_range_forwarding) == []


def test_twins_are_refused() -> None:
    with pytest.raises(ValueError, match="both have the key"):
        graph({"a": ("0", [1]), "b": ("1", [1])})
