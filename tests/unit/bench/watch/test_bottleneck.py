"""Every rule of the table, at and beside its threshold, and which one wins."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from isthmus.bench.watch.bottleneck import Bottleneck, judge
from isthmus.bench.watch.evidence import Counts, Evidence, Flow, LoadUse, ServerUse

ALL_WELL = Counts(offered=1_000, sent=1_000, expected=10_000, received=10_000, limit_ratio=1.0)
LOSS = replace(ALL_WELL, received=9_000)


def verdict(counts: Counts = LOSS, **evidence: Any) -> Bottleneck:
    return judge(Evidence(counts, **evidence))


def flow(share: float, retransmits: int = 0, segments: int = 0, client: str = "t-sub-1") -> Flow:
    return Flow(client, "n1", share, retransmits, segments)


BUSY_TOOL = {"w0": LoadUse(0.2), "w1": LoadUse(0.9)}
THROTTLED = {
    "n1": ServerUse({"broker": 0.02}),
    "n2": ServerUse({"broker": 0.1, "node": 0.1}, {"broker": 0.7, "node": 0.1}),
}
SLOW = [flow(0.0, client="t-sub-0"), flow(0.88)]
LOSSY = [flow(0.0, retransmits=30, segments=10_000)]
PAUSED = {"eth0 rx_pause": 17}


def test_under_the_limit_nothing_limits() -> None:
    assert verdict(ALL_WELL) == Bottleneck("nothing", ())


@pytest.mark.parametrize(
    ("counts", "told"),
    [
        (replace(ALL_WELL, limit_ratio=0.989), "Definition 1 fails: the ratio is 0.989, not 0.99"),
        (replace(ALL_WELL, received=9_999), "1 of 10,000 deliveries are missing"),
        (replace(ALL_WELL, sent=989), "publishers sent 989 of the 1,000 messages they were to"),
    ],
)
def test_a_run_that_is_limited_says_how(counts: Counts, told: str) -> None:
    assert told in verdict(counts).notes
    assert verdict(counts).limited_by != "nothing"


@pytest.mark.parametrize(
    "counts",
    [
        replace(ALL_WELL, limit_ratio=0.99),
        replace(ALL_WELL, limit_ratio=None),
        replace(ALL_WELL, sent=990),
        replace(ALL_WELL, received=10_001),  # duplicates
    ],
)
def test_a_run_at_the_limit_is_under_it(counts: Counts) -> None:
    assert verdict(counts).limited_by == "nothing"


def test_brokers_when_there_is_no_other_cause() -> None:
    assert verdict() == Bottleneck("brokers", ("1,000 of 10,000 deliveries are missing",))


@pytest.mark.parametrize(
    ("evidence", "limited_by", "told"),
    [
        (
            {"load": BUSY_TOOL},
            "load tool",
            "the load process w1 used 0.90 of a core in its busiest second",
        ),
        (
            {"load": {"w0": LoadUse(0.1, late_ms_max=250.0, late_share=0.11)}},
            "load tool",
            "the load process w0 sent 11.0% of its messages late, up to 250 ms",
        ),
        (
            {"load": {"w0": LoadUse(0.1, stalled_share=0.06), "w1": LoadUse(0.1)}},
            "load tool",
            "the load process w0 waited 6% of the run for its recording",
        ),
        ({"machine_busy": 0.97}, "machine", "the machine's cores were 97% busy"),
        (
            {"subscribers": SLOW},
            "subscribers",
            "subscribers held servers back: 1 of 2 connections by their receive window, most of "
            "all that of t-sub-1 at n1, 88% of the time",
        ),
        (
            {"closed_windows": ["t-sub-7", "t-sub-8"]},
            "subscribers",
            "subscribers whose receive window was found closed: t-sub-7 and 1 more",
        ),
        ({"pauses": PAUSED}, "interface", "pause frames: eth0 rx_pause 17"),
        (
            {"subscribers": LOSSY},
            "network",
            "30 of 10,000 segments were lost and sent again, 30 of them between n1 and t-sub-1",
        ),
        (
            {"servers": THROTTLED},
            "brokers",
            "n2: its broker used 0.10 cores, and its CPU quota kept it waiting 0.70 s of each "
            "second",
        ),
        (
            {"servers": {"n1": ServerUse({"broker": 0.97})}},
            "brokers",
            "n1: its broker used 0.97 cores, as much as one thread can",
        ),
    ],
)
def test_each_cause_alone(evidence: dict[str, Any], limited_by: str, told: str) -> None:
    found = verdict(**evidence)
    assert found.limited_by == limited_by
    assert told in found.notes
    # It is told, too, of a run that it did not limit.
    unlimited = verdict(ALL_WELL, **evidence)
    assert (unlimited.limited_by, unlimited.notes) == ("nothing", (told,))


@pytest.mark.parametrize(
    "evidence",
    [
        {"load": {"w0": LoadUse(0.89, late_share=0.1, stalled_share=0.05)}},
        {"machine_busy": 0.96},
        {"subscribers": [flow(0.05)]},
        {"closed_windows": ["t-sub-1"], "subscribers": [flow(0.01)]},
        {"subscribers": [flow(0.0, retransmits=10, segments=10_000)]},
        {"subscribers": [flow(0.0, retransmits=9, segments=100)]},
        {"servers": {"n1": ServerUse({"broker": 0.1}, {"broker": 0.3})}},
        {"servers": {"n1": ServerUse({"broker": 0.6}, {"broker": 0.01})}},
        {"servers": {"n1": ServerUse({"broker": 0.85, "node": 0.4})}},
    ],
)
def test_below_its_threshold_no_cause_holds(evidence: dict[str, Any]) -> None:
    assert verdict(ALL_WELL, **evidence).notes == ()


@pytest.mark.parametrize(
    ("evidence", "limited_by"),
    [
        # A load process that cannot keep up shows in its subscribers' windows.
        ({"subscribers": SLOW, "load": BUSY_TOOL}, "load tool"),
        ({"subscribers": SLOW, "load": {"w0": LoadUse(0.1, stalled_share=0.3)}}, "load tool"),
        ({"subscribers": SLOW, "machine_busy": 1.0}, "machine"),
        # … unless the cores are busy with servers that have all they can use.
        ({"subscribers": SLOW, "machine_busy": 1.0, "servers": THROTTLED}, "subscribers"),
        ({"subscribers": SLOW, "servers": THROTTLED}, "subscribers"),
        # Positive evidence of something on the way comes before the servers' own.
        ({"subscribers": LOSSY, "servers": THROTTLED}, "network"),
        ({"pauses": PAUSED, "subscribers": LOSSY}, "interface"),
        # A server at its end limits a run whatever else is busy too.
        ({"servers": THROTTLED, "load": BUSY_TOOL, "machine_busy": 1.0}, "brokers"),
        ({"servers": {"n1": ServerUse({"broker": 1.4})}, "machine_busy": 1.0}, "machine"),
        ({"load": BUSY_TOOL, "machine_busy": 1.0}, "load tool"),
        ({"load": {"w0": LoadUse(0.2, 50.0, 0.3)}, "machine_busy": 1.0}, "machine"),
    ],
)
def test_which_cause_comes_first(evidence: dict[str, Any], limited_by: str) -> None:
    assert verdict(**evidence).limited_by == limited_by


def test_all_causes_are_told_whichever_wins() -> None:
    found = verdict(servers=THROTTLED, load=BUSY_TOOL, machine_busy=1.0)
    assert len(found.notes) == 4


def test_publishers_that_servers_hold_back_are_the_brokers_doing() -> None:
    behind = replace(ALL_WELL, sent=500)
    held = [flow(0.97, retransmits=24, segments=3_799, client="t-pub-1")]
    found = verdict(behind, publishers=held)
    assert found.limited_by == "brokers"
    assert any(note.startswith("servers held publishers back: 1 of 1") for note in found.notes)
    # What is sent into a closed window counts as lost; that is no fault of the network.
    assert not any("sent again" in note for note in found.notes)


def test_publishers_held_by_their_acknowledgments_are_the_brokers_doing() -> None:
    found = verdict(replace(ALL_WELL, sent=500, held=3))
    assert found.limited_by == "brokers"
    assert "servers held 3 publishers back at once" in found.notes


def test_publishers_that_nobody_held_were_the_load_tool() -> None:
    found = verdict(replace(ALL_WELL, sent=500))
    assert found.limited_by == "load tool"
    assert any("did not keep its schedule" in note for note in found.notes)


def test_late_messages_of_held_publishers_do_not_accuse_the_tool() -> None:
    behind = replace(ALL_WELL, sent=500, held=3)
    assert verdict(behind, load={"w0": LoadUse(0.2, 50.0, 0.3)}).limited_by == "brokers"


def test_dropped_messages_and_what_could_not_be_seen_come_last() -> None:
    found = verdict(dropped={"n1 to n2": 1_200}, notes=("nobody looked",))
    assert found.notes[-2:] == ("links dropped messages: n1 to n2: 1,200", "nobody looked")
