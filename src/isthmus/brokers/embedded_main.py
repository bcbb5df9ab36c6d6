"""`python -m isthmus.brokers.embedded_main --port N`: amqtt until standard input ends.

Standard input is the line to whoever started it: when that process dies or closes it, this
one ends; so it does on SIGTERM.  Warnings and errors go to standard error.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys

from amqtt.broker import Broker
from amqtt.errors import BrokerError

__all__ = ["main"]

_CLOSE_TIMEOUT_S = 1.0


async def _serve(host: str, port: int) -> None:
    broker = Broker(
        {
            "listeners": {"default": {"type": "tcp", "bind": f"{host}:{port}"}},
            "plugins": {
                "amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}
            },
        }
    )
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()

    def on_input() -> None:
        if not os.read(sys.stdin.fileno(), 4096):
            ended.set()

    loop.add_signal_handler(signal.SIGTERM, ended.set)
    loop.add_signal_handler(signal.SIGINT, ended.set)
    loop.add_reader(sys.stdin.fileno(), on_input)
    await broker.start()
    await ended.wait()
    loop.remove_reader(sys.stdin.fileno())
    try:
        await asyncio.wait_for(broker.shutdown(), _CLOSE_TIMEOUT_S)
    except TimeoutError:
        logging.getLogger(__name__).warning("clients still connected after shutdown")


def main() -> None:
    """Serve until told to end."""
    parser = argparse.ArgumentParser(prog="isthmus.brokers.embedded_main")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    logging.disable(logging.INFO)  # amqtt formats several debug lines for every packet
    try:
        asyncio.run(_serve(arguments.host, arguments.port))
    except BrokerError as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
