"""The fuzz target as a test; see `fuzz_decoder.py` for what it promises."""

from __future__ import annotations

import pytest

from fuzz import fuzz_decoder
from fuzz.fuzz_decoder import fuzz
from isthmus.mqtt.decoding import decode
from isthmus.mqtt.packets import PACKET_TYPES, Packet


def check(inputs: int, seed: int) -> None:
    report = fuzz(inputs, seed)
    print(f"seed {seed}: {report}")
    assert report.failure is None, f"seed {seed}: {report.failure}"
    assert report.inputs == inputs == report.accepted + report.refused
    # A fuzzer that reaches only some packets, or only the fixed header, proves little.
    assert set(report.packets) == {packet.__name__ for packet in PACKET_TYPES}
    assert len(report.sections) > 40
    assert report.accepted > inputs // 10


def test_decoder_on_20_000_inputs() -> None:
    check(20_000, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_decoder_on_a_million_inputs() -> None:
    check(1_000_000, seed=2)


def test_the_fuzzer_notices_a_decoder_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def unsound(frame: bytes, level: int) -> Packet:
        if frame[:1] == b"\xc0":
            raise IndexError("as a careless decoder would")
        return decode(frame, level)

    monkeypatch.setattr(fuzz_decoder, "decode", unsound)
    report = fuzz(20_000, seed=1)
    assert report.failure is not None
    assert report.failure.frame[:1] == b"\xc0"
    assert "IndexError" in report.failure.problem


def test_the_same_seed_gives_the_same_run() -> None:
    first, second = fuzz(2_000, seed=3), fuzz(2_000, seed=3)
    assert (first.accepted, first.packets, first.sections) == (
        second.accepted,
        second.packets,
        second.sections,
    )
