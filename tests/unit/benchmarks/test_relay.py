"""The relay benchmark's own arithmetic: frames, counting in any chunking, slices, targets."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from benchmarks.relay import wire
from benchmarks.relay.clients import LoadError
from benchmarks.relay.population import Population, Shape, Subscriber
from benchmarks.relay.processes import parse_smaps_rollup
from benchmarks.relay.report import cpu_model, document_of, write_json
from benchmarks.relay.rounds import Pace, Round
from benchmarks.relay.statistics import Slice, Target, percentile, pool, spread
from benchmarks.relay.verdict import doubts, figures_of, round_document, targets_of


def stream(*messages: tuple[int, int]) -> bytes:
    """Frames of (publisher, seq), sent at the time 1000 x publisher + seq."""
    return b"".join(
        wire.publish(wire.topic(0), 1000 * publisher + seq, seq, publisher)
        for publisher, seq in messages
    )


def part(rate: float, others: float, node_us: float = 2.0) -> Slice:
    """Half a second at `rate`, broker 4 µs, generator 1 µs, while others used so many cores."""
    delivered = round(rate / 2)
    cpu_ns = {"broker": 4000 * delivered, "generator": 1000 * delivered}
    cpu_ns["node"] = round(node_us * 1000) * delivered
    cpu_ns["machine"] = sum(cpu_ns.values()) + round(others * 0.5e9)
    return Slice(0.5, delivered, cpu_ns)


class TestWire:
    def test_every_frame_is_equally_long(self) -> None:
        for number in range(10):
            frame = wire.publish(wire.topic(number), 2**63, 2**32 - 1, 49)
            assert len(frame) == wire.FRAME_BYTES
            assert frame[1] == wire.FRAME_BYTES - 2

    def test_the_payload_has_32_bytes_and_comes_back(self) -> None:
        frame = wire.publish("relay/3", 123_456_789, 7, 42)
        assert len(frame) - wire.PAYLOAD_AT == 32
        assert wire.PAYLOAD.unpack_from(frame, wire.PAYLOAD_AT) == (123_456_789, 7, 42)
        assert wire.RECORD.unpack(frame) == (wire.PUBLISH_QOS0, 123_456_789, 7, 42)

    def test_connect_is_the_specifications_example_shape(self) -> None:
        assert wire.connect("ab") == b"\x10\x0e\x00\x04MQTT\x04\x02\x00\x00\x00\x02ab"

    def test_subscribe(self) -> None:
        assert wire.subscribe("a/b", 10) == b"\x82\x08\x00\x0a\x00\x03a/b\x00"

    def test_a_topic_number_of_two_digits_is_refused(self) -> None:
        with pytest.raises(ValueError, match="equally long"):
            wire.topic(10)

    def test_a_client_id_that_needs_a_longer_header_is_refused(self) -> None:
        with pytest.raises(ValueError, match="127"):
            wire.connect("x" * 200)


class TestSubscriber:
    @pytest.mark.parametrize("seed", range(20))
    def test_counts_and_checks_in_any_chunking(self, seed: int) -> None:
        rng = random.Random(seed)
        order = [(p, s) for s in range(30) for p in range(3)]
        data = stream(*order)
        sampled, full = Subscriber(0), Subscriber(0)
        buffer, times, counted, at = bytearray(4096), [], 0, 0
        while at < len(data):
            chunk = data[at : at + rng.randint(1, 3 * wire.FRAME_BYTES)]
            buffer[: len(chunk)] = chunk
            counted += sampled.take(buffer, len(chunk))
            times += full.take_all(chunk)
            at += len(chunk)
        assert counted == sampled.delivered == full.delivered == len(order)
        assert times == [1000 * p + s for p, s in order]

    def test_a_frame_of_another_kind_is_noticed_wherever_it_stands(self) -> None:
        data = bytearray(stream((0, 0), (0, 1), (0, 2)))
        data[2 * wire.FRAME_BYTES] = 0x31  # retained
        with pytest.raises(LoadError, match="PUBLISH"):
            Subscriber(0).take(data, len(data))
        with pytest.raises(LoadError, match="PUBLISH"):
            Subscriber(0).take_all(bytes(data))

    def test_a_shift_by_one_byte_is_noticed(self) -> None:
        data = bytearray(stream((0, 0), (0, 1))[1:])
        with pytest.raises(LoadError):
            Subscriber(0).take(data, len(data))

    def test_a_repeated_message_is_noticed(self) -> None:
        once = bytearray(stream((0, 0), (0, 1)))
        subscriber = Subscriber(0)
        subscriber.take(once, len(once))
        with pytest.raises(LoadError, match="twice"):
            subscriber.take(once, len(once))

    def test_a_gap_is_noticed_when_every_frame_is_checked(self) -> None:
        with pytest.raises(LoadError, match="message 2 after 0"):
            Subscriber(0).take_all(stream((5, 0), (5, 2)))


class TestLoss:
    @staticmethod
    def population(received: list[int]) -> Population:
        subscribers = [Subscriber(i % 2) for i in range(4)]
        for subscriber, count in zip(subscribers, received, strict=True):
            subscriber.received_bytes = count * wire.FRAME_BYTES
        population = Population(Shape(2, 4, 2), [], subscribers, [])
        for number, seq in ((0, 3), (1, 5)):
            population.publishers.append(FakePublisher(number, seq))  # type: ignore[arg-type]
        return population

    def test_nothing_lost(self) -> None:
        assert self.population([3, 5, 3, 5]).lost() == 0

    def test_missing_deliveries_are_counted(self) -> None:
        assert self.population([3, 4, 1, 5]).lost() == 3

    def test_a_duplicate_cannot_make_up_for_a_loss(self) -> None:
        with pytest.raises(LoadError, match="1 messages more"):
            self.population([4, 5, 2, 5]).lost()


class FakePublisher:
    """What `lost` looks at: a topic, and how many messages were sent."""

    def __init__(self, topic_number: int, seq: int) -> None:
        self.topic_number = topic_number
        self.seq = seq


class TestStatistics:
    def test_percentiles_interpolate(self) -> None:
        values = [10.0, 20.0, 30.0, 40.0]
        assert percentile(values, 0) == 10
        assert percentile(values, 50) == 25
        assert percentile(values, 100) == 40
        assert percentile([7.0], 99) == 7

    def test_spread(self) -> None:
        found = spread([5.0, 1.0, 3.0, 2.0, 4.0])
        assert (found.median, found.low, found.high, found.iqr) == (3, 1, 5, 2)
        with pytest.raises(ValueError, match="at least one"):
            spread([])

    def test_disturbed_slices_are_left_out(self) -> None:
        run = pool([part(200_000, 0.02), part(90_000, 0.8), part(220_000, -0.01)])
        assert run.rate == 210_000
        assert run.slowest_slice_rate == 200_000
        assert (run.slices, run.quiet_slices) == (3, 2)
        assert run.cpu_us_per_delivered == {"broker": 4.0, "generator": 1.0, "node": 2.0}
        assert run.cores["broker"] == pytest.approx(0.84)

    def test_without_a_quiet_slice_all_are_used(self) -> None:
        run = pool([part(100_000, 0.8), part(120_000, 0.6)])
        assert run.rate == 110_000
        assert run.quiet_slices == 0
        assert run.others_cores == pytest.approx(0.7)

    def test_the_limit_is_who_fills_a_core(self) -> None:
        assert pool([part(245_000, 0.0)]).limit == "broker"
        assert pool([part(240_000, 0.0, node_us=4.0)]).limit == "broker and node"
        assert pool([part(100_000, 0.0)]).limit == "none at a full core"

    def test_targets(self) -> None:
        assert Target("rate", "x", 0.95, 0.95, at_least=True).met
        assert not Target("rate", "x", 0.949, 0.95, at_least=True).met
        assert Target("start", "s", 1.0, 1.0).met
        assert not Target("start", "s", 1.1, 1.0).met
        assert not Target("memory", "MiB", None, 80.0).met

    def test_a_shape_must_spread_evenly(self) -> None:
        assert Shape().fan_out == 10
        with pytest.raises(ValueError, match="evenly"):
            Shape(50, 51, 5)


def one_round(direct: float, node: float, *, others: float = 0.0, added_us: float = 80) -> Round:
    """A round with these rates, the lazy ones twice as high, while others used so many cores."""
    runs = {"direct": pool([part(direct, others)]), "node": pool([part(node, others)])}
    lazy = {"direct": pool([part(2 * direct, 0)]), "node": pool([part(node, 0)])}
    paces = {
        path: Pace(median_us, 500, 900, 10, 2000, others)
        for path, median_us in (("direct", 150), ("node", 150 + added_us))
    }
    return Round("direct node node direct", runs, lazy, paces)


class TestVerdict:
    def test_the_ratio_is_taken_per_round_first(self) -> None:
        rounds = [one_round(100_000, 100_000), one_round(200_000, 180_000)]
        figures = figures_of([*rounds, one_round(300_000, 240_000)])
        assert figures["rate ratio"].spread.median == pytest.approx(0.9)
        assert figures["rate ratio, lazy"].spread.median == pytest.approx(0.45)
        assert figures["node CPU / broker CPU, same run"].spread.median == pytest.approx(0.5)

    def test_disturbed_rounds_do_not_count_where_they_were_disturbed(self) -> None:
        rounds = [one_round(200_000, 190_000), one_round(200_000, 90_000, others=0.9)]
        figures = figures_of(rounds)
        assert figures["rate ratio"].rounds == figures["added median latency"].rounds == 1
        assert figures["rate ratio"].spread.median == pytest.approx(0.95)
        assert figures["rate ratio, lazy"].rounds == 2
        assert len(doubts(rounds)) == 2

    def test_when_all_rounds_were_disturbed_all_count(self) -> None:
        rounds = [one_round(200_000, rate, others=0.9) for rate in (90_000, 110_000)]
        assert figures_of(rounds)["rate ratio"].rounds == 2

    def test_targets(self) -> None:
        figures = figures_of([one_round(200_000, 200_000, added_us=301)])
        met = {target.name: target.met for target in targets_of(figures, [0.4, 1.2, 0.4], None)}
        assert met == {
            "highest rate, node / direct": True,
            "highest rate, node / direct, lazy": False,
            "CPU per delivered, node / Mosquitto": True,
            "listens after": False,  # the slowest start decides
            "added median latency": False,
            "RSS with 5000 idle clients": False,  # not measured
        }

    def test_a_round_can_be_written(self) -> None:
        written = json.loads(json.dumps(round_document(one_round(200_000, 190_000))))
        assert written["rate_ratio"] == pytest.approx(0.95)
        assert written["saturated"]["node"]["cpu_us_per_delivered"]["node"] == 2.0


class TestReport:
    def test_smaps_rollup(self) -> None:
        text = (
            "55d0-7ffc ---p 00000000 00:00 0    [rollup]\n"
            "Rss:       10240 kB\nPss:        8000 kB\nPss_Dirty:   10 kB\n"
            "Private_Clean:  1000 kB\nPrivate_Dirty:  5000 kB\nSwap:  0 kB\n"
        )
        found = parse_smaps_rollup(text)
        assert (found.rss_bytes, found.pss_bytes) == (10240 * 1024, 8000 * 1024)
        assert found.uss_bytes == 6000 * 1024

    def test_cpu_model(self) -> None:
        assert cpu_model("processor\t: 0\nmodel name\t: Some CPU 3000\nflags: x\n") == (
            "Some CPU 3000"
        )

    def test_the_document_says_which_targets_were_met(self, tmp_path: Path) -> None:
        targets = [Target("a", "s", 2.0, 1.0), Target("b", "x", 1.0, 0.95, at_least=True)]
        path = tmp_path / "new" / "relay.json"
        write_json(document_of({"machine": {"cores": 2}}, targets), path)
        read = json.loads(path.read_text())
        assert read["schema"] == 1
        assert [target["met"] for target in read["targets"]] == [False, True]
        assert list(path.parent.iterdir()) == [path]
