"""The client libraries behind the scenarios leave nothing behind.

A descriptor left open by each client added up, over a session, to more than paho's `select` takes;
its clients then heard no CONNACK, of whichever broker came last.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from conformance.clients import LIBRARIES
from conformance.matrix import Cell, observe
from conformance.stage import Address
from conftest import SharedBroker

OPEN = Path("/proc/self/fd")


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_scenario_leaves_no_file_open(shared_broker: SharedBroker, library: str) -> None:
    cell = Cell("mosquitto", 4, library, "qos-1-to-1")
    address = Address(shared_broker("mosquitto").port)
    observe(cell, address, 4.0)  # what a library opens once
    before = len(os.listdir(OPEN))
    for _ in range(20):
        observe(cell, address, 4.0)
    assert len(os.listdir(OPEN)) <= before + 4


def test_a_client_that_could_hear_nothing_is_an_error(shared_broker: SharedBroker) -> None:
    address = Address(shared_broker("mosquitto").port)
    taken = [os.open(os.devnull, os.O_RDONLY) for _ in range(1024)]
    try:
        with pytest.raises(RuntimeError, match="paho would hear nothing"):
            observe(Cell("mosquitto", 4, "paho", "qos-1-to-1"), address, 4.0)
    finally:
        for each in taken:
            os.close(each)
