"""Asking a running node over its admin HTTP address."""

from __future__ import annotations

import json
from typing import Any

from isthmus.addresses import Address
from isthmus.errors import AdminError

__all__ = ["ask", "fetch_status"]

ANY_HOST = {"0.0.0.0": "127.0.0.1", "::": "::1"}
MAX_ANSWER_BYTES = 16 * 1024 * 1024


def ask(address: Address, path: str, timeout_s: float = 5.0) -> tuple[int, bytes]:
    """One GET: the HTTP status and the body.  Raises `AdminError` when nobody answers."""
    import http.client

    connection = http.client.HTTPConnection(
        ANY_HOST.get(address.host, address.host), address.port, timeout=timeout_s
    )
    try:
        connection.request("GET", path, headers={"Connection": "close"})
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
    code, body = ask(address, "/api/status", timeout_s)
    try:
        status = json.loads(body)
    except ValueError:
        status = None
    if code != 200 or not isinstance(status, dict):
        raise AdminError(
            f"http://{address}/api/status answered {code} but not with a node's status; is this "
            "the address of [listen] admin in the node's file?"
        )
    return status
