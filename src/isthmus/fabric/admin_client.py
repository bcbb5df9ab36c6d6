"""Asking a running node over its admin HTTP address."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from isthmus.config.addresses import Address
from isthmus.errors import AdminError

__all__ = [
    "add_peer",
    "ask",
    "ask_algorithm",
    "fetch_cooperation",
    "fetch_peers",
    "fetch_status",
    "remove_peer",
    "watch_peer",
]

ANY_HOST = {"0.0.0.0": "127.0.0.1", "::": "::1"}
POLL_S = 0.05
MAX_ANSWER_BYTES = 16 * 1024 * 1024


def ask(
    address: Address,
    path: str,
    timeout_s: float = 5.0,
    *,
    method: str = "GET",
    content: object = None,
) -> tuple[int, bytes]:
    """One request: the HTTP status and the body.  Raises `AdminError` when nobody answers.

    Any method but GET is sent as JSON, `content` being its body unless it is None.
    """
    import http.client

    connection = http.client.HTTPConnection(
        ANY_HOST.get(address.host, address.host), address.port, timeout=timeout_s
    )
    headers = {"Connection": "close"}
    if method != "GET":
        headers["Content-Type"] = "application/json"
    try:
        body = None if content is None else json.dumps(content)
        connection.request(method, path, body=body, headers=headers)
        response = connection.getresponse()
        return response.status, response.read(MAX_ANSWER_BYTES)
    except (OSError, http.client.HTTPException) as error:
        raise AdminError(
            f"no node answers on http://{address}{path}: {error or type(error).__name__}; is it "
            "running, and is this the address of [listen] admin in its file?"
        ) from None
    finally:
        connection.close()


def fetch_status(address: Address, timeout_s: float = 5.0) -> dict[str, Any]:
    """A running node's ``/api/status``."""
    return _fetch(address, "/api/status", "a node's status", timeout_s)


def fetch_peers(address: Address, timeout_s: float = 5.0) -> dict[str, Any]:
    """A running node's ``/api/peers``."""
    return _fetch(address, "/api/peers", "a node's peers", timeout_s)


def fetch_cooperation(address: Address, timeout_s: float = 5.0) -> dict[str, Any]:
    """A running node's ``/api/cooperation``."""
    return _fetch(address, "/api/cooperation", "a node's algorithm", timeout_s)


def ask_algorithm(address: Address, request: Mapping[str, object]) -> None:
    """Ask a node's algorithm for something; raises `AdminError` with what it objects to."""
    _change(address, "POST", "/api/cooperation", dict(request))


def add_peer(
    address: Address,
    peer: str,
    lanes: int | None = None,
    qos: int | None = None,
    rules: Mapping[str, object] | None = None,
) -> None:
    """Have the node at `address` link to `peer`; raises `AdminError` with what it objects to.

    `rules` has ``out``, ``in`` and ``prefix`` of a ``[[peer]]``, those that are set.
    """
    wanted: dict[str, object] = {"address": peer, **(rules or {})}
    if lanes is not None:
        wanted["lanes"] = lanes
    if qos is not None:
        wanted["qos"] = qos
    _change(address, "POST", "/api/peers", wanted)


def remove_peer(address: Address, name: str) -> None:
    """Have the node at `address` give up the neighbor of that id or address."""
    _change(address, "DELETE", f"/api/peers/{quote(name, safe='')}", None)


def watch_peer(
    address: Address, peer: str, timeout_s: float
) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    """The line of `peer` in ``/api/peers`` and all of these, once it is linked or time is over."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        answer = fetch_peers(address)
        rows = [row for row in answer["peers"] if row["address"] == peer]
        settled = not rows or rows[0]["state"] in ("active", "blocked")
        if settled or time.monotonic() >= deadline_s:
            return (rows[0] if rows else None), answer
        time.sleep(POLL_S)


def _fetch(address: Address, path: str, what: str, timeout_s: float) -> dict[str, Any]:
    code, body = ask(address, path, timeout_s)
    content = _parsed(body)
    if code == 200 and isinstance(content, dict):
        return content
    if problems := _problems(content):
        raise AdminError(problems)
    raise AdminError(
        f"http://{address}{path} answered {code} but not with {what}; is this "
        "the address of [listen] admin in the node's file?"
    )


def _change(address: Address, method: str, path: str, content: object) -> None:
    code, body = ask(address, path, method=method, content=content)
    if 200 <= code < 300:
        return
    raise AdminError(_problems(_parsed(body)) or f"http://{address}{path} answered {code}")


def _problems(answer: object) -> str:
    """What a node says is wrong with the request; empty if it says nothing."""
    problems = answer.get("problems") if isinstance(answer, dict) else None
    return "; ".join(str(each) for each in problems) if isinstance(problems, list) else ""


def _parsed(body: bytes) -> object:
    try:
        content: object = json.loads(body)
    except ValueError:
        return None
    return content
