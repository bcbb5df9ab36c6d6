"""Fixtures shared by all the tests: real brokers, and Spark's (`spark.py`); hooks (`workers.py`).

Brokers of two kinds: `broker_factory` starts brokers for one test and stops them after it;
`shared_broker` starts each make once per session, for tests that leave it as they found it
(own client ids, own topics, no retained messages left behind, no kill).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import settings

from isthmus.brokers import broker_class, create
from isthmus.brokers.base import Broker
from support.spark import connect_server, spark, spark_cluster
from support.workers import (
    pytest_collection_modifyitems,
    pytest_configure,
    pytest_xdist_make_scheduler,
)

__all__ = [
    "BROKER_FAULT",
    "BROKER_VARIES",
    "BrokerFactory",
    "SharedBroker",
    "connect_server",
    "pytest_collection_modifyitems",
    "pytest_configure",
    "pytest_xdist_make_scheduler",
    "require_broker",
    "spark",
    "spark_cluster",
]

# They live for a test or a session: starting is half as long without the second compiler.
Broker.java_options = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")

# How long an example takes says more of the machine than of what is tested.
settings.register_profile("isthmus", deadline=None)
settings.load_profile("isthmus")

BrokerFactory = Callable[..., Broker]
SharedBroker = Callable[[str], Broker]

BROKER_FAULT, BROKER_VARIES = "broker_fault", "broker_varies"
"""Properties of tests, which stand in the summary under these titles."""
TITLES = {
    BROKER_FAULT: "faults of the brokers themselves",
    BROKER_VARIES: "differed at first; what the broker itself does, run again",
}


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what the brokers themselves do otherwise than the standard, and what they vary."""
    reports = (each for name in ("passed", "failed") for each in terminalreporter.getreports(name))
    said = [each for report in reports for each in report.user_properties]
    for kind, title in TITLES.items():
        lines = [str(line) for each, line in said if each == kind]
        if lines:
            terminalreporter.section(title)
        for line in lines:
            terminalreporter.write_line(line)


def require_broker(name: str) -> None:
    """Without the broker called `name`: fail in CI, elsewhere skip, saying how to get it."""
    missing = broker_class(name).missing()
    if missing is None:
        return
    if os.environ.get("CI"):
        pytest.fail(str(missing), pytrace=False)
    pytest.skip(str(missing))


@pytest.fixture
def broker_factory() -> Iterator[BrokerFactory]:
    """`broker_factory(name, **options)`: a started broker, stopped at the end of the test."""
    started: list[Broker] = []

    def start(name: str, **options: Any) -> Broker:
        require_broker(name)
        broker = create(name, **options)
        started.append(broker)
        broker.start()
        return broker

    yield start
    for broker in reversed(started):
        broker.stop()


@pytest.fixture(scope="session")
def shared_broker() -> Iterator[SharedBroker]:
    """`shared_broker(name)`: the session's broker of that make, started when first asked for."""
    running: dict[str, Broker] = {}

    def get(name: str) -> Broker:
        require_broker(name)
        if name not in running:
            running[name] = create(name)
        if not running[name].running:
            running[name].start()
        return running[name]

    yield get
    with ThreadPoolExecutor() as pool:
        list(pool.map(Broker.stop, running.values()))
