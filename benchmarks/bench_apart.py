"""A node is away while others publish on: who slows down, what it takes of disk and memory.

    python benchmarks/bench_apart.py [--away 600] [--rate 10000] [--out FILE] [--check]

    publisher ─▶ hub ── good ─▶ subscriber          each with a Mosquitto, `hub` with a state_dir
                  └──── bad ─▶ subscriber           its node is killed, and started `--away` s later

Every message is at QoS 1 and numbered.  Measured are the rate at which `good` gets them before and
while `bad` is away, the resident memory of `hub` (every second), what is on its disk, and after
`bad` is back whether its subscriber gets everything that was acknowledged, once and in order, and
how long that takes.  See ``benchmarks/README.md``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import urllib.request
from collections import deque
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a script: find `benchmarks`

from benchmarks.command import RESULTS
from benchmarks.command import run as run_bench
from benchmarks.pages import commit
from benchmarks.relay.report import machine_facts

from isthmus.brokers import create
from isthmus.errors import LoadError
from isthmus.mqtt.decoding import decode
from isthmus.mqtt.encoding import encode
from isthmus.mqtt.framing import FrameBuffer, scan
from isthmus.mqtt.packets import Connect, Packet, Publish, SubAck, Subscribe, Subscription
from isthmus.processes.children import Launch, end, launch
from isthmus.processes.ports import free_port

__all__ = ["main"]

PAYLOAD_BYTES = 32
TICK_S = 0.01
EMPTIED_S = 10.0
"""What the last one to arrive has acknowledged has left the disk by then."""
CALM_S = 10.0
WINDOW = 5_000
TOPIC = "load"
FOR_EVER = 0xFFFF_FFFF
PUBACK, PUBLISH = 0x40, 0x30
DIGITS = 12
_EXAMPLE = encode(Publish(TOPIC, bytes(PAYLOAD_BYTES), 1, packet_id=1), 4)
_HEAD, _REST = _EXAMPLE[: -PAYLOAD_BYTES - 2], b" " * (PAYLOAD_BYTES - DIGITS)
KEEPS_ITS_RATE = 0.95
MEMORY_BYTES = 128 << 20
"""What the node may take more than before: several times `queue_bytes`."""


class Client(asyncio.Protocol):
    """A connection with a node; `take` is given whole packets."""

    def __init__(self, client_id: str, *, clean: bool) -> None:
        self._id, self._clean = client_id, clean
        self._buffer = FrameBuffer()
        self._out: list[bytes] = []
        self.transport: asyncio.Transport
        self.ready = asyncio.Event()
        self.lost = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.send(Connect(self._id, clean_start=self._clean, keep_alive=0, protocol_level=4))

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set()

    def send(self, packet: Packet) -> None:
        self.transport.write(encode(packet, 4))

    def data_received(self, data: bytes) -> None:
        data = self._buffer.push(data)
        offsets = scan(data)
        for start, stop in pairwise(offsets):
            self._frame(data[start:stop])
        self._buffer.keep(data[offsets[-1] :])
        if self._out:
            self.transport.write(b"".join(self._out))
            self._out.clear()

    def _frame(self, frame: bytes) -> None:
        if frame[0] == 0x20:
            self.connected()
        elif frame[0] & 0xF0 == PUBLISH:
            self.message(frame)
        elif frame[0] == PUBACK:
            self.acknowledged(frame[2] << 8 | frame[3])
        elif isinstance(decode(frame, 4), SubAck):
            self.ready.set()

    def connected(self) -> None:
        self.ready.set()

    def message(self, frame: bytes) -> None: ...
    def acknowledged(self, packet_id: int) -> None: ...


class Subscriber(Client):
    """Notes what it gets: how often each number, whether in order."""

    def __init__(self, name: str) -> None:
        super().__init__(f"subscriber-{name}", clean=False)
        self.got = bytearray()
        """By number, how often."""
        self.count = self.twice = self.disorder = 0
        self._last = -1

    def connected(self) -> None:
        self.send(Subscribe(1, (Subscription(TOPIC, 1),)))

    def message(self, frame: bytes) -> None:
        # The generator is a part of the load on the machine: no object is made for a message.
        number = int(frame[-PAYLOAD_BYTES : DIGITS - PAYLOAD_BYTES])
        if number >= len(self.got):
            self.got.extend(bytes(number + 1 - len(self.got)))
        if self.got[number]:
            self.twice += 1
        else:
            self.count += 1
            self.disorder += number < self._last
            self._last = number
        self.got[number] = min(255, self.got[number] + 1)
        self._out.append(b"\x40\x02" + frame[-PAYLOAD_BYTES - 2 : -PAYLOAD_BYTES])


class Publisher(Client):
    """So many a second, and at most `WINDOW` unacknowledged."""

    def __init__(self, rate_per_s: float) -> None:
        super().__init__("publisher", clean=True)
        self._rate_per_s = rate_per_s
        self.sent = self.acked = 0
        self.stopping = False

    def acknowledged(self, packet_id: int) -> None:
        self.acked += 1

    async def run(self) -> None:
        await self.ready.wait()
        begin_s, late = time.monotonic(), 0.0
        while not self.stopping:
            await asyncio.sleep(TICK_S)
            due = int((time.monotonic() - begin_s) * self._rate_per_s - late) - self.sent
            free = WINDOW - (self.sent - self.acked)
            if due > free:
                late += due - free  # what could not be sent in time is not made up for
            packets = []
            for number in range(self.sent, self.sent + min(due, free)):
                packet_id = (number % 60_000 + 1).to_bytes(2)
                payload = b"%0*d" % (DIGITS, number)
                packets.append(b"".join((_HEAD, packet_id, payload, _REST)))
            self.sent += len(packets)
            self.transport.write(b"".join(packets))


class Node:
    """``isthmus node`` before a Mosquitto."""

    def __init__(self, name: str, folder: Path, stack: ExitStack, peer: Node | None) -> None:
        self.name = name
        self.port, self.link_port, self.admin_port = free_port(), free_port(), free_port()
        broker = create("mosquitto", extra=("max_queued_messages 0", "max_inflight_messages 1000"))
        broker.start()
        stack.callback(broker.stop)
        self.state_dir = folder / f"{name}-state"
        lines = [
            "[node]",
            f'id = "{name}"',
            f'state_dir = "{self.state_dir}"',
            "[listen]",
            f'mqtt = "127.0.0.1:{self.port}"',
            f'link = "127.0.0.1:{self.link_port}"',
            f'admin = "127.0.0.1:{self.admin_port}"',
            "[broker]",
            f'url = "mqtt://127.0.0.1:{broker.port}"',
        ]
        if peer is not None:
            lines += ["[[peer]]", f'address = "127.0.0.1:{peer.link_port}"']
        self._file, self._log = folder / f"{name}.toml", folder / f"{name}.log"
        self._file.write_text("\n".join(lines) + "\n")
        self.start()
        stack.callback(lambda: end(self._child, 10.0))

    def start(self) -> None:
        command = Launch([sys.executable, "-m", "isthmus", "node", str(self._file)], {})
        self._child = launch(command, self._log)

    def pause(self) -> None:
        os.kill(self._child.pid, signal.SIGSTOP)

    def kill(self) -> None:
        os.kill(self._child.pid, signal.SIGKILL)
        self._child.wait()

    def unacknowledged(self, neighbor: str) -> int:
        """Messages that it holds because the neighbor has not acknowledged them."""
        url = f"http://127.0.0.1:{self.admin_port}/api/status"
        with urllib.request.urlopen(url, timeout=10) as response:
            links = json.load(response)["fabric"]["links"]
        return int(next(each for each in links if each["neighbor"] == neighbor)["unacknowledged"])

    def rss_bytes(self) -> int:
        return int(psutil.Process(self._child.pid).memory_info().rss)

    def disk_bytes(self) -> int:
        folder = self.state_dir / "apart"
        sizes = []
        for each in folder.glob("*") if folder.exists() else ():
            try:
                sizes.append(each.stat().st_size)
            except FileNotFoundError:
                pass  # removed just now
        return sum(sizes)

    async def connect(self, client: Client) -> None:
        deadline_s = time.monotonic() + 30
        while True:
            try:
                loop = asyncio.get_running_loop()
                await loop.create_connection(lambda: client, "127.0.0.1", self.port)
                await asyncio.wait_for(client.ready.wait(), 10)
                return
            except OSError:
                if time.monotonic() > deadline_s:
                    raise LoadError(f"{self.name} does not listen") from None
                await asyncio.sleep(0.1)


async def _measure(nodes: dict[str, Node], away_s: float, rate: float) -> dict[str, Any]:
    hub, bad = nodes["hub"], nodes["bad"]
    good_end, bad_end = Subscriber("good"), Subscriber("bad")
    await nodes["good"].connect(good_end)
    await bad.connect(bad_end)
    publisher = Publisher(rate)
    await hub.connect(publisher)
    await asyncio.sleep(2.0)
    task = asyncio.ensure_future(publisher.run())
    await asyncio.sleep(2.0)
    before = await _rate_of(good_end, CALM_S)
    memory_before = hub.rss_bytes()
    bad.pause()  # else it would acknowledge more while `hub` is asked
    unacknowledged = await asyncio.to_thread(hub.unacknowledged, "bad")
    bad.kill()
    killed_s, begin = time.monotonic(), good_end.count
    memory: list[int] = []
    disk: deque[int] = deque(maxlen=1)
    while time.monotonic() < killed_s + away_s:
        await asyncio.sleep(1.0)
        memory.append(hub.rss_bytes())
        disk.append(hub.disk_bytes())
    while_away = (good_end.count - begin) / (time.monotonic() - killed_s)
    bad.start()
    again = Subscriber("bad")
    again.got, again.count, again.twice = bad_end.got, bad_end.count, bad_end.twice
    again.disorder = bad_end.disorder
    await bad.connect(again)
    back_s = time.monotonic()
    publisher.stopping = True
    await task
    deadline_s = back_s + 60 + 2 * away_s
    while min(again.count, good_end.count) < publisher.sent and time.monotonic() < deadline_s:
        await asyncio.sleep(0.1)
        memory.append(hub.rss_bytes())
    there_s = time.monotonic()
    while hub.disk_bytes() and time.monotonic() < there_s + EMPTIED_S:  # noqa: ASYNC110
        await asyncio.sleep(0.1)
    return {
        "rate_before_per_s": round(before),
        "rate_while_away_per_s": round(while_away),
        "kept_rate": round(while_away / before, 3),
        "sent": publisher.sent,
        "acknowledged": publisher.acked,
        "disk_bytes": disk[0],
        "memory_before_bytes": memory_before,
        "memory_most_bytes": max(memory),
        "missing": publisher.sent - again.count,
        "unacknowledged_at_kill": unacknowledged,
        "twice": again.twice,
        "out_of_order": again.disorder,
        "caught_up_after_s": round(there_s - back_s, 1),
        "disk_bytes_after": hub.disk_bytes(),
    }


async def _rate_of(subscriber: Subscriber, seconds: float) -> float:
    begin_s, begin = time.monotonic(), subscriber.count
    await asyncio.sleep(seconds)
    return (subscriber.count - begin) / (time.monotonic() - begin_s)


def bench(arguments: argparse.Namespace, console: Console) -> bool:
    folder = Path(tempfile.mkdtemp(prefix="isthmus-apart-"))
    try:
        with ExitStack() as stack:
            nodes: dict[str, Node] = {}
            for name in ("hub", "good", "bad"):
                nodes[name] = Node(name, folder, stack, nodes.get("hub"))
            found = asyncio.run(_measure(nodes, arguments.away, arguments.rate))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    grown = found["memory_most_bytes"] - found["memory_before_bytes"]
    targets = {
        f"the rate was {arguments.rate:g} a second": found["rate_before_per_s"]
        >= 0.95 * arguments.rate,
        "the other neighbor keeps its rate within 5 %": found["kept_rate"] >= KEEPS_ITS_RATE,
        "memory is bounded": grown <= MEMORY_BYTES,
        "nothing is missing": found["missing"] == 0,
        "twice came at most what was not acknowledged at the kill": found["twice"]
        <= found["unacknowledged_at_kill"],
        "in order": found["out_of_order"] == 0,
        "nothing is left on disk": found["disk_bytes_after"] == 0,
    }
    record = {
        "commit": commit(),
        "time": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "machine": machine_facts(console),
        "load_average": os.getloadavg(),
        "away_s": arguments.away,
        "rate_per_s": arguments.rate,
        **found,
        "targets": targets,
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(record, indent=1) + "\n")
    for key, value in found.items():
        console.print(f"{key:24} {value:>16,}")
    for target, met in targets.items():
        console.print(f"{'passed' if met else 'MISSED':8} {target}")
    return all(targets.values())


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench_apart", description=__doc__.splitlines()[0])
    parser.add_argument("--away", type=float, default=600.0, help="seconds that the node is away")
    parser.add_argument("--rate", type=float, default=10_000.0, help="messages a second")
    parser.add_argument("--out", type=Path, default=RESULTS / "apart.json", help="JSON to write")
    parser.add_argument("--check", action="store_true", help="exit 1 when a target is missed")
    arguments = parser.parse_args()
    return run_bench("apart", 80, lambda console: bench(arguments, console), check=arguments.check)


if __name__ == "__main__":
    sys.exit(main())
