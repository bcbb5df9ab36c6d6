"""Hears what is published around somebody who moves.

    python examples/follow_an_area.py HOST PORT

Somebody drives through Tokyo from west to east, a step every second.  Subscribed to is what is
within two kilometers, and changed is only what a step changes.  Sensors publish on the cell that
they are in, with 14 digits, and "temperature" (`isthmus geo cell 35.68 139.76 --digits 14`).

Needs `pip install isthmus paho-mqtt`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

from isthmus.cooperation.geo import WORLD, Change, Following

DIGITS = 14
RADIUS_M = 2_000
QOS = 1


def drive() -> Iterator[tuple[float, float]]:
    """Positions: latitude and longitude."""
    for step in range(100):
        yield 35.68, 139.70 + 0.001 * step


def apply(client: mqtt.Client, change: Change) -> None:
    """New ones first: so nothing is missed in between."""
    if change.added:
        client.subscribe([(each, QOS) for each in change.added])
    if change.removed:
        client.unsubscribe([*change.removed])


def main(host: str, port: int) -> None:
    following = Following(WORLD, digits=DIGITS, precision=14, rest="temperature", slack=0.2)
    client = mqtt.Client(CallbackAPIVersion.VERSION2, protocol=mqtt.MQTTv5)

    def on_connect(client: mqtt.Client, *_: Any) -> None:
        apply(client, Change(added=following.filters))  # the broker may have forgotten them

    def on_message(_client: mqtt.Client, _userdata: Any, message: mqtt.MQTTMessage) -> None:
        cell = "/".join(message.topic.split("/")[:DIGITS])
        print(f"{message.payload.decode()} at {WORLD.center(cell)}")

    client.on_connect = on_connect
    client.on_message = on_message
    client.connect(host, port)
    client.loop_start()
    for position in drive():
        change = following.follow(position, RADIUS_M)
        if change and client.is_connected():
            apply(client, change)
            print(f"{position}: {len(change.added)} more, {len(change.removed)} less")
        time.sleep(1)
    client.loop_stop()
    client.disconnect()


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: follow_an_area.py HOST PORT")
    main(sys.argv[1], int(sys.argv[2]))
