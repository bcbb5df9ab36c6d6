"""The plan of the Overlays paper's evaluation: settings, clients, lines, names."""

from __future__ import annotations

import pytest

from isthmus.bench.scenario import Place
from isthmus.brokers import broker_class
from isthmus.errors import BrokerMissing, ReproduceError
from isthmus.reproduce.overlays.experiments import (
    CONTENDERS,
    NODES,
    ROOT,
    Experiment,
    Parameters,
    Setting,
    check_broker,
    choose,
    experiments,
    lines,
    member_sets,
    places,
    scenario_of,
    settings,
)

PARAMETERS = Parameters()


def test_the_papers_grid_is_all_there() -> None:
    made = settings(quick=False)
    assert len(made) == len(set(made)) == 16
    assert {(s.locality, s.topics) for s in made if s == Setting(s.locality, s.topics)} == {
        (locality, topics) for locality in (100, 50, 0) for topics in (3, 30, 60)
    }
    assert {s.payload_bytes for s in made if "fig8" in s.figures} == {10**3, 10**4, 10**5}
    assert {(s.topics, s.stress) for s in made if "fig9" in s.figures} == {
        (topics, stress) for topics in (3, 30, 60) for stress in (False, True)
    }
    assert [s for s in made if s.repairs] == [Setting(50, 3)]
    assert {each.contender.key for each in experiments(quick=False)} == set(CONTENDERS)


def test_quick_makes_a_part_of_it() -> None:
    assert set(settings(quick=True)) < set(settings(quick=False))
    assert {each for s in settings(quick=True) for each in s.figures} == {
        "fig6",
        "fig7",
        "fig8",
        "fig9",
        "table2",
    }


def test_fifty_percent_is_repeated_as_often_as_in_the_paper() -> None:
    assert Setting(50, 3).repetitions == 10
    assert Setting(0, 3).repetitions == 3
    assert Setting(50, 60, 10**5, stress=True).repetitions == 1


@pytest.mark.parametrize(
    ("setting", "name"),
    [
        (Setting(50, 60), "l50-t60"),
        (Setting(0, 3, 100_000), "l0-t3-p100000"),
        (Setting(50, 30, stress=True), "l50-t30-stress"),
        (Setting(50, 60, 10_000, True), "l50-t60-p10000-stress"),
    ],
)
def test_names(setting: Setting, name: str) -> None:
    experiment = Experiment(setting, CONTENDERS["single"])
    assert setting.name == name
    assert experiment.name == f"{name}-single"
    assert experiment.run(2) == f"{name}-single-2"


def test_choosing_by_experiment_setting_and_figure() -> None:
    known = experiments(quick=False)
    assert choose(known, ()) == known
    assert [each.name for each in choose(known, ["l50-t60-single"])] == ["l50-t60-single"]
    assert {each.contender.key for each in choose(known, ["l0-t3"])} == set(CONTENDERS)
    assert {each.setting for each in choose(known, ["table2"])} == {Setting(50, 3)}
    with pytest.raises(ReproduceError, match="no experiment fig5, l51-t3; there are fig6, fig7"):
        choose(known, ["fig5", "l51-t3", "fig6"])


@pytest.mark.parametrize("topics", [3, 30, 60])
@pytest.mark.parametrize("locality", [100, 50, 0])
def test_clients_are_where_the_locality_says(locality: int, topics: int) -> None:
    for number in range(1, 20):
        made = places(PARAMETERS, Setting(locality, topics), number)
        publishing = {place.node for place in made if place.publishers}
        subscribing = {place.node for place in made if place.subscribers}
        assert sum(place.publishers for place in made) == 20
        assert sum(place.subscribers for place in made) == 5
        published = {place.topic for place in made if place.publishers}
        assert {place.topic for place in made} == published
        assert len(published) <= topics
        if locality == 100:
            assert publishing == subscribing
        elif locality == 0:
            assert publishing.isdisjoint(subscribing)
        if locality != 50:
            assert len(publishing) == len(subscribing) == 1
            assert ROOT not in publishing | subscribing


def test_at_fifty_percent_they_are_anywhere() -> None:
    made = [p for number in range(1, 11) for p in places(PARAMETERS, Setting(50, 3), number)]
    assert {place.node for place in made if place.publishers} == set(NODES)
    assert {place.node for place in made if place.subscribers} == set(NODES)


def test_the_lot_depends_on_the_seed_and_the_round_alone() -> None:
    base = places(PARAMETERS, Setting(50, 60), 1)
    assert places(PARAMETERS, Setting(50, 60, 10**5, stress=True), 1) == base
    assert places(PARAMETERS, Setting(50, 60), 2) != base
    assert places(Parameters(seed=2), Setting(50, 60), 1) != base
    assert lines(PARAMETERS, 1) == lines(PARAMETERS, 1)
    assert lines(PARAMETERS, 1) != lines(PARAMETERS, 2)


def test_lines_are_the_papers() -> None:
    made = [line for number in range(1, 101) for line in lines(PARAMETERS, number)]
    assert len(made) == 1000
    assert {line.mbit_s for line in made} == {10.0}
    delays = [line.delay_ms or 0.0 for line in made]
    mean = sum(delays) / len(delays)
    sigma = (sum((delay - mean) ** 2 for delay in delays) / len(delays)) ** 0.5
    assert mean == pytest.approx(10.0, abs=0.3)
    assert sigma == pytest.approx(2.5, abs=0.3)


def test_member_sets_are_counted_once() -> None:
    used = [
        Place(node="n1", topic="a", publishers=1),
        Place(node="n2", topic="a", subscribers=1),
        Place(node="n2", topic="b", publishers=1),
        Place(node="n1", topic="b", subscribers=1),
        Place(node="n3", topic="c", publishers=1),
    ]
    assert member_sets(used) == {frozenset({"n1", "n2"})}


@pytest.mark.parametrize("key", CONTENDERS)
def test_contenders_differ_in_the_algorithm_alone(key: str) -> None:
    made = scenario_of(PARAMETERS, Experiment(Setting(50, 3, stress=True), CONTENDERS[key]), 1)
    other = scenario_of(
        PARAMETERS, Experiment(Setting(50, 3, stress=True), CONTENDERS["flooding"]), 1
    )
    assert made.cooperation.algorithm == CONTENDERS[key].algorithm
    assert made.cooperation.options.get("roots") == CONTENDERS[key].options.get("roots")
    assert (made.place, made.emulation, made.load) == (other.place, other.emulation, other.load)
    assert made.load.interval_ns == 100_000_000
    assert made.discovery.is_on
    assert made.scenario.trim_s > made.load.interval_ns / 1e9


def test_without_multicast_nodes_are_told_of_each_other() -> None:
    experiment = Experiment(Setting(50, 3), CONTENDERS["single"])
    made = scenario_of(PARAMETERS, experiment, 1, multicast=False)
    assert not made.discovery.is_on
    assert sum(len(node.peers) for node in made.node) == 10


def test_brokers_that_cannot_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ReproduceError, match="there is no broker kafka; there are mosquitto"):
        check_broker("kafka")
    lacking = BrokerMissing("mosquitto", "the program mosquitto", "apt install mosquitto")
    monkeypatch.setattr(broker_class("mosquitto"), "missing", classmethod(lambda cls: lacking))
    with pytest.raises(BrokerMissing, match="mosquitto"):
        check_broker("mosquitto")
