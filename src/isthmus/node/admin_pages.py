"""What the admin server answers to which request; no socket here.

    GET    /healthz           200 while the event loop turns
    GET    /readyz            200 when clients would be served, else 503 and why not
    GET    /metrics           Prometheus text, or OpenMetrics when asked for
    GET    /api/status        JSON, the same that `isthmus status` shows
    GET    /api/peers         JSON: the neighbors, in which state and why
    POST   /api/peers         {"address": "host:port", "lanes": 1, "qos": 1}: 202
    GET    /api/cooperation   the algorithm, and topics that are moving
    POST   /api/cooperation   what the algorithm can be asked for: 202
    DELETE /api/peers/NAME    by the neighbor's id or address: 200, or 404
    GET    /                  a list of the above

There is no login, and browsers on an operator's machine reach what only that machine reaches.  So
nothing is answered to who calls the node by a name that nobody gave it: a page can lure a browser
here by a name of its own (DNS rebinding), but not by an IP address, ``localhost`` or the names of
``[listen] admin_hosts``.  And what changes the node is answered only to programs on the same
machine and not to web pages: the caller must connect from loopback, must say ``Content-Type:
application/json``, which a page of another origin cannot without being allowed to, and if it says
where it comes from (``Origin``, as browsers do) that must be this node.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import unquote

from isthmus.config.files import peer_from
from isthmus.cooperation.link_rules import NO_RULES, LinkRules
from isthmus.errors import ConfigError
from isthmus.node.neighbors import neighbors

__all__ = ["PAGES", "AdminNode", "AdminRequest", "Answer", "StatusSource", "answer", "ip_address"]

INDEX = """Isthmus node; see docs/reference/admin.md.

/healthz     is the process alive
/readyz      would a client be served now
/metrics     Prometheus
/api/status  everything, as JSON
/api/peers   neighbors; POST adds one, DELETE /api/peers/NAME removes one
/api/cooperation   the algorithm; POST asks it for something, as `isthmus geo split` does
"""

JSON = "application/json"


class StatusSource(Protocol):
    """A node that can be asked."""

    @property
    def ready(self) -> bool: ...

    def status(self) -> dict[str, Any]: ...


class AdminNode(StatusSource, Protocol):
    """What the admin server needs of a node."""

    def add_peer(
        self,
        address: str,
        lanes: int | None = None,
        qos: int | None = None,
        rules: LinkRules = NO_RULES,
    ) -> None: ...

    def remove_peer(self, name: str) -> bool: ...

    def ask_algorithm(self, request: Mapping[str, object]) -> Mapping[str, object]: ...


@dataclass(frozen=True, slots=True)
class AdminRequest:
    """One HTTP request, after framing."""

    method: str
    target: str
    accept: str = ""
    content_type: str = ""
    host: str = ""
    """The Host header: what the caller calls this node; empty if it does not say (HTTP/1.0)."""
    origin: str = ""
    """The Origin header: the site of the page that a browser asks for, if it is a browser."""
    client: str = ""
    """The IP address that the request comes from."""
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Answer:
    """One HTTP answer, before framing."""

    status: int
    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    headers: tuple[tuple[str, str], ...] = ()


def answer(node: AdminNode, request: AdminRequest, hosts: Collection[str] = ()) -> Answer:
    """What `request` is answered with by a node that is called `hosts`, in small letters."""
    if request.host and not _is_ours(request.host, hosts):
        return _problem(
            421,
            f"this node is not known as {_name(request.host)!r}; call it by an IP address or "
            "localhost, or add the name to admin_hosts in [listen] of its file",
        )
    path = request.target.partition("?")[0]
    name = path.removeprefix(PEER_PREFIX) if path.startswith(PEER_PREFIX) else ""
    methods = {"DELETE": _remove_peer} if name else PAGES.get(path)
    if methods is None:
        return Answer(404, f"not found\n\n{INDEX}".encode())
    method = "GET" if request.method == "HEAD" else request.method
    page = methods.get(method)
    if page is None:
        allowed = ", ".join([*methods, "HEAD"] if "GET" in methods else methods)
        headers = (("Allow", allowed),)
        return Answer(405, f"only {allowed}\n".encode(), headers=headers)
    if method != "GET" and (refusal := _may_not_change(request)):
        return refusal
    return page(node, request)


def _may_not_change(request: AdminRequest) -> Answer | None:
    if not _is_loopback(request.client):
        return _problem(403, "changes are taken only from this machine (loopback)")
    if request.content_type.partition(";")[0].strip().lower() != JSON:
        return _problem(415, f"changes need the header Content-Type: {JSON}")
    if not request.host:
        return _problem(403, "changes need a Host header")
    if request.origin and request.origin.rpartition("://")[2].lower() != request.host.lower():
        return _problem(403, f"changes are not taken from pages of {request.origin}")
    return None


def _is_loopback(host: str) -> bool:
    address = ip_address(host)
    return address is not None and address.is_loopback


def ip_address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The address that `host` is, an IPv4 one as itself also where IPv6 carries it; else None."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def _is_ours(host: str, hosts: Collection[str]) -> bool:
    """Whether a Host header holds an address, or one of the names that the operator gave."""
    name = _name(host)
    return name == "localhost" or name in hosts or ip_address(name) is not None


def _name(host: str) -> str:
    """A Host header without its port."""
    name = host.rpartition("]")[0][1:] if host.startswith("[") else host.partition(":")[0]
    return name.lower().removesuffix(".")


# ---- pages -----------------------------------------------------------------------------------


def _json(status: int, content: object) -> Answer:
    return Answer(status, json.dumps(content, indent=2, default=str).encode() + b"\n", JSON)


def _problem(status: int, *problems: str) -> Answer:
    return _json(status, {"problems": list(problems)})


def _index(node: AdminNode, request: AdminRequest) -> Answer:
    return Answer(200, INDEX.encode())


def _healthz(node: AdminNode, request: AdminRequest) -> Answer:
    return Answer(200, b"ok\n")


def _readyz(node: AdminNode, request: AdminRequest) -> Answer:
    if node.ready:
        return Answer(200, b"ready\n")
    status = node.status()
    reason = f"not ready: the node is {status.get('node', {}).get('status', 'not running')}"
    for each in status.get("brokers", []):
        if problem := each["away"] or each["problem"]:
            reason += f"; its broker {each['name']} ({problem})"
    broker = {} if "brokers" in status else status.get("broker", {})
    if broker.get("reachable") is False:
        reason += f"; its broker {broker.get('url', '')} is unreachable"
        if broker.get("problem"):
            reason += f" ({broker['problem']})"
    elif broker.get("own_session_refused"):
        reason += f"; its broker {broker.get('problem', '')}"
    for problem in status.get("node", {}).get("problems", []):
        reason += f"; {problem}"
    return Answer(503, f"{reason}\n".encode())


def _status(node: AdminNode, request: AdminRequest) -> Answer:
    return _json(200, node.status())


def _metrics(node: AdminNode, request: AdminRequest) -> Answer:
    from isthmus.node.metrics import exposition

    body, content_type = exposition(node, request.accept)
    return Answer(200, body, content_type)


def _peers(node: AdminNode, request: AdminRequest) -> Answer:
    return _json(200, neighbors(node.status()))


def _add_peer(node: AdminNode, request: AdminRequest) -> Answer:
    try:
        wanted = json.loads(request.body)
    except (ValueError, RecursionError) as error:
        return _problem(400, f"the body is not JSON: {error}")
    if not isinstance(wanted, dict):
        return _problem(400, 'the body must be an object like {"address": "192.0.2.7:7883"}')
    try:
        peer = peer_from(wanted)
    except ConfigError as error:
        return _problem(400, *(f"{m.key}: {m.problem}" for m in error.mistakes))
    address = str(peer.address)
    status = node.status()
    if address in status.get("listeners", {}).values():
        return _problem(400, f"address: {address} is this node's own; name another node's link")
    if any(row["address"] == address for row in neighbors(status)["peers"]):
        return _problem(409, f"{address} is already a peer; to change it, remove it first")
    try:
        node.add_peer(address, peer.lanes, peer.qos, peer.rules)
    except ValueError as error:
        return _problem(400, str(error))
    return _json(202, {"address": address})


def _cooperation(node: AdminNode, request: AdminRequest) -> Answer:
    status = node.status()
    return _json(
        200, {"algorithm": status.get("fabric", {}).get("algorithm"), "move": status.get("move")}
    )


def _ask(node: AdminNode, request: AdminRequest) -> Answer:
    """What the algorithm can be asked for."""
    try:
        wanted = json.loads(request.body)
    except (ValueError, RecursionError) as error:
        return _problem(400, f"the body is not JSON: {error}")
    if not isinstance(wanted, dict):
        return _problem(400, "the body must be an object")
    try:
        return _json(202, node.ask_algorithm(wanted))
    except ValueError as error:
        return _problem(400, str(error))


def _remove_peer(node: AdminNode, request: AdminRequest) -> Answer:
    name = unquote(request.target.partition("?")[0].removeprefix(PEER_PREFIX))
    if node.remove_peer(name):
        return _json(200, {"removed": name})
    known = neighbors(node.status())["peers"]
    names = [str(n) for row in known for n in (row["neighbor"], row["address"]) if n]
    there = f"there are {', '.join(names)}" if names else "there is none"
    return _problem(404, f"no neighbor has the id or address {name!r}; {there}")


PEER_PREFIX = "/api/peers/"
Page = Callable[[AdminNode, AdminRequest], Answer]
PAGES: Mapping[str, Mapping[str, Page]] = {
    "/": {"GET": _index},
    "/healthz": {"GET": _healthz},
    "/readyz": {"GET": _readyz},
    "/metrics": {"GET": _metrics},
    "/api/status": {"GET": _status},
    "/api/peers": {"GET": _peers, "POST": _add_peer},
    "/api/cooperation": {"GET": _cooperation, "POST": _ask},
}
