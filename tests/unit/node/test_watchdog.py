"""The watchdog counts slow turns of the event loop, and tells of them without flooding the log."""

from __future__ import annotations

import asyncio
import logging
import time

import pytest

from isthmus.exchange.client.counters import Counters
from isthmus.node.watchdog import LOG_EVERY_S, SLOW_S, TICK_S, Watchdog


@pytest.fixture
def watchdog() -> Watchdog:
    return Watchdog(asyncio.new_event_loop(), Counters())


def test_only_slow_turns_count(watchdog: Watchdog) -> None:
    watchdog.noticed(1.0, 0.001, 0.001)
    watchdog.noticed(2.0, SLOW_S, SLOW_S)
    assert watchdog._counters.slow_turns == 0
    watchdog.noticed(3.0, 0.2, 0.15)
    watchdog.noticed(4.0, 0.1, 0.1)
    assert watchdog._counters.slow_turns == 2
    assert (watchdog.longest_s, watchdog.longest_cpu_s) == (0.2, 0.15)


def test_the_busiest_turn_need_not_be_the_longest(watchdog: Watchdog) -> None:
    watchdog.noticed(1.0, 0.3, 0.001)  # the machine was busy with others
    watchdog.noticed(2.0, 0.03, 0.04)  # 10 ms of it before the timer was due
    assert (watchdog.longest_s, watchdog.longest_cpu_s) == (0.3, 0.001)
    assert watchdog.busiest_cpu_s == 0.03


def test_one_line_tells_of_many(watchdog: Watchdog, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        for number in range(100):
            watchdog.noticed(number * LOG_EVERY_S / 40, 0.06 + number / 1000, 0.05)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 3
    assert all("event loop held" in line for line in lines)


def test_a_turn_that_holds_the_loop_is_noticed() -> None:
    counters = Counters()

    async def hold() -> None:
        watchdog = Watchdog(asyncio.get_running_loop(), counters)
        watchdog.start()
        time.sleep(SLOW_S + 2 * TICK_S)  # noqa: ASYNC251 - that is what it is about
        while not counters.slow_turns:  # noqa: ASYNC110 - the timer tells nobody
            await asyncio.sleep(TICK_S)
        watchdog.stop()
        assert watchdog.longest_s > SLOW_S

    asyncio.run(asyncio.wait_for(hold(), 10))
    assert counters.slow_turns
