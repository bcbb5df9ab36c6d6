"""A stand-in for a load process: speaks the control protocol and plays its clients in its head.

    python load_process.py BEHAVIOR WRITER

Everything its publishers "send" its own subscribers "receive" a millisecond later, so it needs no
broker; what it writes are real files.  `BEHAVIOR` says what goes wrong, and that of one writer can
be chosen: ``dies-measuring:w1``.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from isthmus.bench.load.clock import now_ns

DELAY_NS = 1_000_000
EVERY_S = 0.05

Message = dict[str, Any]


class LoadProcess:
    """One stand-in."""

    def __init__(self, behavior: str, writer: str) -> None:
        what, _, who = behavior.partition(":")
        self.behavior = what if who in ("", writer) else "plays-along"
        self.writer = writer
        self.clients: list[Message] = []
        self.topics = 0
        self.trickle = 0

    def does(self, what: str) -> bool:
        return self.behavior == what

    def say(self, **message: Any) -> None:
        print(json.dumps({"writer": self.writer, **message}), flush=True)

    def run(self) -> None:
        for message in self.hear():
            match message["do"]:
                case "clock":
                    self.say(**{"is": "clock", "t_ns": now_ns()})
                case "connect":
                    self.connect(message)
                case "measure":
                    self.measure(message)
                case "close":
                    if self.does("stays"):
                        time.sleep(600)
                    return

    def hear(self) -> Iterator[Message]:
        for line in sys.stdin:
            yield json.loads(line)

    def connect(self, message: Message) -> None:
        print(f"{self.writer} connects", file=sys.stderr, flush=True)
        match self.behavior:
            case "dies-connecting":
                print("a bad end", file=sys.stderr, flush=True)
                os._exit(3)
            case "fails-connecting":
                self.say(**{"is": "failed", "problem": "127.0.0.1:1 refused t-pub-0"})
                os._exit(1)
            case "chatters":
                print("this is not JSON", flush=True)
            case "never-connects":
                return
        self.clients = message["clients"]
        self.topics = len(message["topics"])
        sockets = {client["name"]: f"127.0.0.1:{i + 1}" for i, client in enumerate(self.clients)}
        self.say(**{"is": "connected", "clients": len(self.clients), "sockets": sockets})

    def of(self, role: str) -> list[Message]:
        return [client for client in self.clients if client["role"] == role]

    def due(self, message: Message, until_ns: int) -> int:
        """How many messages each publisher has sent by then."""
        start_ns = int(message["start_ns"])
        interval_ns = int(message["interval_ns"][self.clients[0]["kind"]])
        end_ns = start_ns + round(float(message["duration_s"]) * 1e9)
        return max(0, (min(until_ns, end_ns) - start_ns) // interval_ns)

    def measure(self, message: Message) -> None:
        end_ns = message["start_ns"] + round(message["duration_s"] * 1e9)
        while True:
            if self.does("dies-measuring") and now_ns() > message["start_ns"]:
                os._exit(4)
            if self.does("fails-measuring") and now_ns() > message["start_ns"]:
                self.say(**{"is": "failed", "problem": "n1 closed the connection of t-sub-1"})
            if self.does("silent"):
                time.sleep(600)
            self.progress(message, sending=now_ns() < end_ns)
            if select.select([sys.stdin], [], [], EVERY_S)[0]:
                break
        if json.loads(sys.stdin.readline())["do"] == "finish":
            self.finish(message)
        else:
            sys.exit(0)

    def progress(self, message: Message, *, sending: bool) -> None:
        each = self.due(message, now_ns())
        received = self.received(each)
        if self.does("trickles"):
            self.trickle += 1
            received = min(received - 1, self.trickle)
        self.say(
            **{
                "is": "progress",
                "sent": each * len(self.of("publisher")),
                "received": received,
                "held": 0,
                "sending": sending,
                "sent_by_topic": self.by_topic(each),
            }
        )

    def by_topic(self, each: int) -> list[int]:
        topics = [client["topic"] for client in self.of("publisher")]
        return [each * topics.count(topic) for topic in range(self.topics)]

    def received(self, each: int) -> int:
        by_topic = self.by_topic(each)
        return sum(self.kept(by_topic[client["topic"]]) for client in self.of("subscriber"))

    def kept(self, count: int) -> int:
        return count * 9 // 10 if self.does("loses") else count

    def finish(self, message: Message) -> None:
        each = self.due(message, now_ns())
        start_ns = message["start_ns"]
        interval_ns = message["interval_ns"][self.clients[0]["kind"]]
        sent = [
            {
                "publisher": client["client"],
                "message": number,
                "topic": client["topic"],
                "t_send_ns": start_ns + number * interval_ns,
            }
            for client in self.of("publisher")
            for number in range(each)
        ]
        received = []
        for client in self.of("subscriber"):
            mine = [row for row in sent if row["topic"] == client["topic"]]
            received += [
                row | {"subscriber": client["client"], "t_receive_ns": row["t_send_ns"] + DELAY_NS}
                for row in mine[: self.kept(len(mine))]
            ]
        files = [
            self.write(message, "publishes", sent),
            self.write(message, "deliveries", received),
        ]
        if self.does("miscounts"):
            files[1]["rows"] += 1
        self.say(
            **{
                "is": "measured",
                "run": message["run"],
                "files": files,
                "strays": [{"reason": "another run", "rows": 2}],
                "sent": len(sent),
                "received": len(received),
                "offered": len(sent) * 2 if self.does("loses") else len(sent),
                "sent_by_topic": self.by_topic(each),
                "headroom": {"cpu": 0.1, "late_ms_max": 0.5, "late_share": 0.0},
                "tcp": [],
                "notes": [],
                "lost_clients": 0,
                "left_out": 0,
                "returned": {},
            }
        )

    def write(self, message: Message, table: Any, rows: list[Message]) -> Message:
        # Not before it is needed: most of what is tested ends before, and importing it takes long.
        import pyarrow as pa
        import pyarrow.parquet as pq

        from isthmus.pipeline.log.schema import file_path, with_footer

        path = file_path(Path(message["log"]), table, message["run"], self.writer)
        path.parent.mkdir(parents=True, exist_ok=True)
        schema = with_footer(table, message["run"], self.writer)
        pq.write_table(pa.Table.from_pylist(rows, schema), path)
        return {"table": table, "rows": len(rows)}


if __name__ == "__main__":
    LoadProcess(sys.argv[1], sys.argv[2]).run()
