"""Which experiments there are, and what they need."""

from __future__ import annotations

from collections import Counter

import pytest

from isthmus.brokers import broker_class, names
from isthmus.errors import BrokerMissing, ReproduceError
from isthmus.reproduce.ildm.experiments import MIXED, RELATIVE, choose, experiments, missing_brokers


def test_every_broker_alone_and_every_pattern_with_both_algorithms() -> None:
    made = {each.name: each for each in experiments(quick=True)}
    assert {f"single-{broker}" for broker in names()} <= made.keys()
    for pattern, nodes in (("A", 1), ("B", 5), ("C", 5), ("D", 5)):
        for algorithm in ("pf", "sf"):
            scenario = made[f"{pattern}-{algorithm}"].scenario
            assert scenario.name == pattern
            assert scenario.cooperation.algorithm == algorithm
            assert [node.broker for node in scenario.node] == ["mosquitto"] * nodes
    assert made["mixed-C-sf"].brokers == MIXED
    assert len(set(MIXED)) == 5
    assert len(made) == len(names()) + 8 + 1


def test_the_full_one_mixes_brokers_in_three_patterns() -> None:
    mixed = [each for each in experiments(quick=False) if each.group == "mixed"]
    assert [each.name for each in mixed] == ["mixed-B-sf", "mixed-C-sf", "mixed-D-sf"]
    assert [node.broker for node in mixed[0].scenario.node] == list(MIXED)


def test_a_bare_broker_of_many_threads_may_use_the_whole_server() -> None:
    made = {each.name: each.scenario for each in experiments(quick=True)}
    assert made["single-mosquitto"].emulation.cpu_per_process == 0.1
    assert made["single-hivemq"].emulation.cpu_per_process is None
    assert made["single-hivemq"].emulation.cpu == made["single-mosquitto"].emulation.cpu


def test_labels_tell_brokers_and_algorithm() -> None:
    made = {each.name: each.labels for each in experiments(quick=True)}
    assert made["single-aedes"]["algorithm"] == ""
    assert made["single-aedes"]["broker"] == "aedes"
    assert Counter(made["mixed-C-sf"]["broker"].split(",")) == Counter(MIXED)
    assert made["C-pf"]["algorithm"] == "pf"


def test_a_search_begins_a_little_over_the_limit_that_is_expected() -> None:
    for each in experiments(quick=False):
        assert each.name in RELATIVE
        expected_s = 50 * 10 / (10_000 * RELATIVE[each.name])
        first_s = each.first_interval_ns(10_000.0) / 1e9
        assert 0.8 * expected_s < first_s < 0.9 * expected_s


def test_choosing() -> None:
    known = experiments(quick=True)
    assert choose(known, []) == known
    assert [each.name for each in choose(known, ["C-sf", "A-pf"])] == ["A-pf", "C-sf"]
    with pytest.raises(ReproduceError, match="no experiment E-sf; there are single-mosquitto, "):
        choose(known, ["A-pf", "E-sf"])


def test_missing_brokers_are_named_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    lacking = BrokerMissing("aedes", "the program node", "as root: apt-get install nodejs")
    monkeypatch.setattr(broker_class("aedes"), "missing", classmethod(lambda cls: lacking))
    monkeypatch.setattr(broker_class("mosquitto"), "missing", classmethod(lambda cls: None))
    made = {each.name: each for each in experiments(quick=True)}
    assert missing_brokers(made["single-mosquitto"]) == {}
    assert "apt-get install nodejs" in missing_brokers(made["single-aedes"])["aedes"]
