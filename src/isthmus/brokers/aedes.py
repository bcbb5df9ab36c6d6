"""aedes, from npm: a broker for Node.js, with a main program of a few lines."""

from __future__ import annotations

from pathlib import Path

from isthmus.brokers.artifacts import NpmPackage
from isthmus.brokers.base import Broker
from isthmus.processes.children import Launch, find_executable

__all__ = ["ARTIFACT", "Aedes"]

ARTIFACT = NpmPackage(broker="aedes", version="1.2.0", package="aedes")

# An ES module: aedes is one, and Node.js 18 cannot `require` such.
_PROGRAM = """\
import net from 'node:net'
import { Aedes } from 'aedes'
const [host, port] = process.argv.slice(2)
const broker = await Aedes.createBroker()
const server = net.createServer((socket) => { socket.setNoDelay(true); broker.handle(socket) })
server.on('error', (error) => { console.error(error.message); process.exit(1) })
server.listen(Number(port), host)
"""


class Aedes(Broker):
    """MQTT 3.1.1; keeps nothing on disk: after a crash it comes back empty."""

    name = "aedes"
    needs = ARTIFACT
    protocol_levels = (4,)

    def configure(self, folder: Path) -> Launch:
        program = folder / "main.mjs"
        program.write_text(_PROGRAM)
        # A bare module name is looked up beside the program, nowhere else.
        modules = folder / "node_modules"
        if not modules.exists():
            modules.symlink_to(ARTIFACT.folder / "node_modules")
        node = find_executable("node") or "node"
        return Launch([node, str(program), self.host, str(self.port)], cwd=folder)
