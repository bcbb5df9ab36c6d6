"""Ports for brokers and nodes: processes beside each other give none twice."""

from __future__ import annotations

import pytest

from isthmus.processes import ports


@pytest.mark.parametrize("part", range(3))
def test_processes_that_share_give_different_ports(
    part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_part", "_parts"):
        monkeypatch.setattr(ports, name, getattr(ports, name))  # this test's own alone
    ports.share(part, 3)
    given = [ports.free_port() for _ in range(50)]
    assert {port % 3 for port in given} == {part}
    assert len(set(given)) == 50
    assert min(given) >= 1024
