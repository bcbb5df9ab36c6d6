"""Moquette alone: it closes the connection of who subscribes while a retained message is deleted.

    PYTHONPATH=tests python -m conformance.moquette_retained

Clients set and delete retained messages while others subscribe to them, directly at the broker, no
node in between; printed is how many of those were cut off.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from isthmus.brokers import create
from support.fabrics import Closed, FabricClient

TOPICS = 4
READERS = 4
ROUNDS = 100


def main() -> None:
    broker = create("moquette")
    broker.start()
    over = threading.Event()
    closed: list[str] = []

    def write(topic: int) -> None:
        with FabricClient(broker.port, 4) as client:
            client.connect(f"writer-{topic}")
            while not over.is_set():
                for payload in (b"kept", b""):
                    client.publish(f"kept/{topic}", payload, 1, retain=True)

    def read(reader: int) -> None:
        for number in range(ROUNDS):
            with FabricClient(broker.port, 4) as client:
                client.connect(f"reader-{reader}-{number}")
                try:
                    for topic in range(TOPICS):
                        client.subscribe(f"kept/{topic}", qos=1)
                except Closed:
                    closed.append(f"reader-{reader}-{number}")

    def started(work: Callable[[int], None], count: int) -> list[threading.Thread]:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
        for thread in threads:
            thread.start()
        return threads

    try:
        writers = started(write, TOPICS)
        for thread in started(read, READERS):
            thread.join()
        over.set()
        for thread in writers:
            thread.join()
    finally:
        over.set()
        broker.stop()
    print(f"{len(closed)} of {READERS * ROUNDS} subscribers were cut off")


if __name__ == "__main__":
    main()
