"""What limited a run: the brokers, as it should be, or something else (ILDM §5.3).

A run was limited if Definition 1 fails, messages are missing, or publishers could not send what
they were to.  Then the first cause of this table that holds is what limited it; all that hold are
told in the notes, with their figures, also when the run was not limited at all.

    limited_by   holds if
    ──────────   ────────────────────────────────────────────────────────────────────────────────
    load tool    subscribers are slow (see below), and a load process used ≥ 0.9 of a core or waited
                 > 5 % of the run for its own recording
    machine      … and else all cores were ≥ 97 % busy, and no server was at its end
    subscribers  a subscriber's receive window held its server back > 5 % of the run, or, where
                 the server's end cannot be seen, was found closed
    interface    an interface on the way counted pause frames
    network      > 1 in 1,000 segments was lost and sent again, and at least 10 were, on connections
                 that no closed window held back (what is sent into one counts as lost)
    brokers      a server was at its end: a process of it ran or was kept waiting by its CPU quota
                 ≥ 50 % of the time (≥ 5 % waiting), or used 0.9 to 1.05 cores, which is all that
                 one thread can
    load tool    a load process used ≥ 0.9 of a core in its busiest second, or waited > 5 % of the
                 run for its own recording
    machine      all cores were ≥ 97 % busy
    load tool    a load process sent > 10 % of its messages late, or publishers sent < 99 % of what
                 they were to, and nobody held these back
    brokers      none of these
    nothing      the run was not limited

Positive evidence comes before what could be a consequence: a server at its end limits a run
whatever else is busy too, and a load process that cannot keep up shows in its subscribers' windows.
Of several causes the order names one; the notes name all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from isthmus.bench.watch.evidence import Evidence, Flow
from isthmus.pipeline.count.tables import UNDER_LIMIT

__all__ = ["Bottleneck", "LimitedBy", "judge"]

LimitedBy = Literal[
    "nothing", "brokers", "load tool", "machine", "network", "interface", "subscribers"
]

LOAD_CPU: Final = 0.9
STALLED: Final = 0.05
LATE_SHARE: Final = 0.1
MACHINE_BUSY: Final = 0.97
RWND_LIMITED: Final = 0.05
RETRANSMITS: Final = 0.001
MIN_RETRANSMITS: Final = 10
DEMAND: Final = 0.5
MIN_WAITED: Final = 0.05
ONE_THREAD: Final = (0.9, 1.05)


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """What limited the run, and everything that was found, with figures."""

    limited_by: LimitedBy
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Findings:
    """What each rule found; an empty text: it does not hold."""

    limited: str
    held: str
    subscribers: str
    interface: str
    network: str
    at_its_end: str
    load_cpu: str
    stalled: str
    machine: str
    late: str


def judge(evidence: Evidence) -> Bottleneck:
    """Weigh the evidence."""
    found = _Findings(
        limited="; ".join(_limits(evidence)),
        held=_held(evidence),
        subscribers=_subscribers(evidence),
        interface=_interface(evidence),
        network=_network(evidence),
        at_its_end="; ".join(_servers_at_their_end(evidence)),
        load_cpu=_load_cpu(evidence),
        stalled=_stalled(evidence),
        machine=_machine(evidence),
        late=_late(evidence),
    )
    told = [getattr(found, name) for name in _Findings.__slots__]
    dropped = "; ".join(f"{link}: {n:,}" for link, n in evidence.dropped.items())
    if dropped:
        told.append(f"links dropped messages: {dropped}")
    return Bottleneck(_main(found), tuple(note for note in [*told, *evidence.notes] if note))


def _main(found: _Findings) -> LimitedBy:
    if not found.limited:
        return "nothing"
    if found.subscribers:
        if found.load_cpu or found.stalled:
            return "load tool"
        return "machine" if found.machine and not found.at_its_end else "subscribers"
    if found.interface:
        return "interface"
    if found.network:
        return "network"
    if found.at_its_end:
        return "brokers"
    if found.load_cpu or found.stalled:
        return "load tool"
    if found.machine:
        return "machine"
    return "load tool" if found.late and not found.held else "brokers"


# ---- was it limited? -----------------------------------------------------------------------


def _limits(evidence: Evidence) -> Iterator[str]:
    counts = evidence.counts
    if counts.limit_ratio is not None and counts.limit_ratio < UNDER_LIMIT:
        yield f"Definition 1 fails: the ratio is {counts.limit_ratio:.3f}, not {UNDER_LIMIT}"
    if counts.received < counts.expected:
        missing = counts.expected - counts.received
        yield f"{missing:,} of {counts.expected:,} deliveries are missing"
    if counts.sent < UNDER_LIMIT * counts.offered:
        yield f"publishers sent {counts.sent:,} of the {counts.offered:,} messages they were to"


def _held(evidence: Evidence) -> str:
    slow = _limited_by_window(evidence.publishers)
    if slow:
        return f"servers held publishers back: {_worst(slow, evidence.publishers)}"
    held = evidence.counts.held
    return f"servers held {held} publishers back at once" if held else ""


# ---- anything but the brokers? -------------------------------------------------------------


def _subscribers(evidence: Evidence) -> str:
    slow = _limited_by_window(evidence.subscribers)
    if slow:
        return f"subscribers held servers back: {_worst(slow, evidence.subscribers)}"
    # A closed window tells less than time, so it counts only for those nobody timed.
    timed = {flow.client for flow in evidence.subscribers}
    closed = [client for client in evidence.closed_windows if client not in timed]
    if not closed:
        return ""
    others = f" and {len(closed) - 1} more" if len(closed) > 1 else ""
    return f"subscribers whose receive window was found closed: {closed[0]}{others}"


def _interface(evidence: Evidence) -> str:
    grown = "; ".join(f"{counter} {n:,}" for counter, n in evidence.pauses.items())
    return f"pause frames: {grown}" if grown else ""


def _network(evidence: Evidence) -> str:
    flows = [
        flow
        for flow in (*evidence.publishers, *evidence.subscribers)
        if flow.rwnd_limited_share <= RWND_LIMITED
    ]
    again = sum(flow.retransmits for flow in flows)
    segments = sum(flow.segments for flow in flows)
    if again < MIN_RETRANSMITS or again <= RETRANSMITS * segments:
        return ""
    worst = max(flows, key=lambda flow: flow.retransmits)
    return (
        f"{again:,} of {segments:,} segments were lost and sent again, "
        f"{worst.retransmits:,} of them between {worst.node} and {worst.client}"
    )


def _load_cpu(evidence: Evidence) -> str:
    writer, use = max(evidence.load.items(), key=lambda item: item[1].cpu, default=("", None))
    if use is None or use.cpu < LOAD_CPU:
        return ""
    return f"the load process {writer} used {use.cpu:.2f} of a core in its busiest second"


def _stalled(evidence: Evidence) -> str:
    writer, use = max(
        evidence.load.items(), key=lambda item: item[1].stalled_share, default=("", None)
    )
    if use is None or use.stalled_share <= STALLED:
        return ""
    return f"the load process {writer} waited {use.stalled_share:.0%} of the run for its recording"


def _machine(evidence: Evidence) -> str:
    busy = evidence.machine_busy
    if busy is None or busy < MACHINE_BUSY:
        return ""
    return f"the machine's cores were {busy:.0%} busy"


def _late(evidence: Evidence) -> str:
    late = [item for item in evidence.load.items() if item[1].late_share > LATE_SHARE]
    if late:
        writer, use = max(late, key=lambda item: item[1].late_share)
        return (
            f"the load process {writer} sent {use.late_share:.1%} of its messages late, "
            f"up to {use.late_ms_max:.0f} ms"
        )
    counts = evidence.counts
    if counts.sent < UNDER_LIMIT * counts.offered and not _held(evidence):
        return "the load tool did not keep its schedule though nobody held publishers back"
    return ""


# ---- or the brokers themselves? ------------------------------------------------------------


def _servers_at_their_end(evidence: Evidence) -> Iterator[str]:
    for node, use in evidence.servers.items():
        for process, cores in use.cpu_cores.items():
            waited = use.waited.get(process, 0.0)
            if waited >= MIN_WAITED and cores + waited >= DEMAND:
                yield (
                    f"{node}: its {process} used {cores:.2f} cores, and its CPU quota kept it "
                    f"waiting {waited:.2f} s of each second"
                )
            elif ONE_THREAD[0] <= cores <= ONE_THREAD[1]:
                yield f"{node}: its {process} used {cores:.2f} cores, as much as one thread can"


def _limited_by_window(flows: Iterable[Flow]) -> list[Flow]:
    return [flow for flow in flows if flow.rwnd_limited_share > RWND_LIMITED]


def _worst(slow: Sequence[Flow], all_of_them: Sequence[Flow]) -> str:
    worst = max(slow, key=lambda flow: flow.rwnd_limited_share)
    return (
        f"{len(slow)} of {len(all_of_them)} connections by their receive window, most of all that "
        f"of {worst.client} at {worst.node}, {worst.rwnd_limited_share:.0%} of the time"
    )
