"""The greeting between a coordinator and an agent on another machine, both ends.

    agent        {"is": "agent", "version": 1, "nonce": …}
    coordinator  {"do": "join", "version": 1, "nonce": …, "writer": "w0", "proof": …}
    agent        {"is": "joined", "proof": …, "machine": …}     or {"is": "failed", "problem": …}

An agent starts processes for whoever joins, so both must know the same token.  It never crosses the
network: a proof is HMAC-SHA-256 under the token over role, version, writer and both nonces, as in
the greeting of links (:mod:`isthmus.exchange.link.hello`).  What follows the greeting is neither
encrypted nor authenticated, the passwords of the brokers included.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from pathlib import Path
from typing import Final, Literal

from isthmus.bench.coordinator.control import LineChannel, item
from isthmus.errors import ConfigError, ConfigMistake, LoadFailed

__all__ = ["VERSION", "greet_agent", "greet_coordinator", "read_token"]

VERSION: Final = 2
GREETING_S: Final = 5.0
NONCE_BYTES: Final = 16
FEWEST_CHARACTERS: Final = 16
WRITER: Final = re.compile(r"[a-z][0-9]{1,6}")


def read_token(path: Path) -> bytes:
    """The token in the file at `path`; raises `ConfigError` with what is wrong with it."""
    remedy = "write one with `openssl rand -hex 16` and give the same file to all"
    try:
        token = path.read_bytes().strip()
    except OSError as error:
        problem = f"cannot be read: {error.strerror}; {remedy}"
        raise ConfigError([ConfigMistake(str(path), "", problem)]) from None
    if len(token) < FEWEST_CHARACTERS:
        problem = f"has {len(token)} characters, a token {FEWEST_CHARACTERS} or more; {remedy}"
        raise ConfigError([ConfigMistake(str(path), "", problem)])
    return token


def greet_coordinator(channel: LineChannel, token: bytes, machine: str) -> str:
    """At the agent: the writer that whoever is at the other end wants, if it knows the token."""
    ours = secrets.token_bytes(NONCE_BYTES)
    channel.send({"is": "agent", "version": VERSION, "nonce": ours.hex()}, GREETING_S)
    join = channel.receive(GREETING_S)
    if join.get("do") != "join":
        raise LoadFailed(channel.name, "did not greet as a coordinator does")
    if join.get("version") != VERSION:
        raise LoadFailed(
            channel.name,
            f"speaks version {join.get('version')!r} and the agent {VERSION}; install the same "
            "Isthmus at both ends",
        )
    theirs = item(join, "nonce", str, channel.name)
    writer = item(join, "writer", str, channel.name)
    proof = item(join, "proof", str, channel.name)
    expected = _proof(token, "coordinator", writer, ours.hex(), theirs)
    if not hmac.compare_digest(proof.encode(), expected.encode()):
        raise LoadFailed(channel.name, "has another token than the agent")
    if not WRITER.fullmatch(writer):
        raise LoadFailed(channel.name, f"asked for a load process {writer!r}; w0 would be right")
    proof = _proof(token, "agent", writer, ours.hex(), theirs)
    channel.send({"is": "joined", "proof": proof, "machine": machine}, GREETING_S)
    return writer


def greet_agent(channel: LineChannel, token: bytes, writer: str) -> str:
    """At the coordinator: have the agent run `writer`; the name of its machine."""
    try:
        hello = channel.receive(GREETING_S)
        if hello.get("is") == "failed":
            raise LoadFailed(channel.name, item(hello, "problem", str, channel.name))
        if hello.get("is") != "agent":
            raise LoadFailed(channel.name, "whatever listens there is not `isthmus bench agent`")
        ours, theirs = secrets.token_bytes(NONCE_BYTES).hex(), item(hello, "nonce", str, "agent")
        proof = _proof(token, "coordinator", writer, theirs, ours)
        join = {"do": "join", "version": VERSION, "nonce": ours, "writer": writer, "proof": proof}
        channel.send(join, GREETING_S)
        joined = channel.receive(GREETING_S)
    except EOFError:
        raise LoadFailed(channel.name, "the agent closed the connection") from None
    if joined.get("is") != "joined":
        raise LoadFailed(channel.name, f"the agent refused: {joined.get('problem')}")
    expected = _proof(token, "agent", writer, theirs, ours)
    if not hmac.compare_digest(str(joined.get("proof")).encode(), expected.encode()):
        raise LoadFailed(channel.name, "the agent has another token than this coordinator")
    return item(joined, "machine", str, channel.name)


def _proof(
    token: bytes,
    role: Literal["coordinator", "agent"],
    writer: str,
    agent_nonce: str,
    coordinator_nonce: str,
) -> str:
    said = f"{role}\n{VERSION}\n{writer}\n{agent_nonce}\n{coordinator_nonce}"
    return hmac.digest(token, said.encode(), hashlib.sha256).hex()
