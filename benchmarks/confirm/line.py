"""A link that takes time: ``python -m benchmarks.confirm.line PORT TARGET_PORT DELAY_S``.

What comes on either side is passed on `DELAY_S` later; a round trip takes twice that.
"""

from __future__ import annotations

import asyncio
import sys

__all__ = ["main"]


async def _one_way(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: float
) -> None:
    loop = asyncio.get_running_loop()
    while data := await reader.read(65_536):
        loop.call_later(delay_s, writer.write, data)
    loop.call_later(delay_s, writer.close)


async def _serve(port: int, target: int, delay_s: float) -> None:
    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", target)
        await asyncio.gather(_one_way(reader, back, delay_s), _one_way(there, writer, delay_s))

    server = await asyncio.start_server(accepted, "127.0.0.1", port)
    await server.serve_forever()


def main(arguments: list[str]) -> None:
    port, target, delay_s = arguments
    asyncio.run(_serve(int(port), int(target), float(delay_s)))


if __name__ == "__main__":
    main(sys.argv[1:])
