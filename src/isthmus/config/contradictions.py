"""The mistakes that lie between the keys of a file.

The two ``…_contradictions`` look at the raw tables, whose values may be of any type, and pass over
what the fields themselves already report.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator

from isthmus.config.addresses import Address, BrokerUrl
from isthmus.config.fields import ip_version, is_loopback, topic_filter
from isthmus.config.files import OF_SEVERAL, PROTECT, Cooperation, Limits, Listen, option_error
from isthmus.config.mistakes import (
    Loc,
    Mistakes,
    Table,
    dotted,
    known_names,
    raw_table,
    raw_tables,
    same_ids,
    unknown_key,
)
from isthmus.cooperation.link_rules import LinkRules, check_rules, no_rules
from isthmus.cooperation.registry import check_options, load, not_routed
from isthmus.errors import AlgorithmError
from isthmus.mqtt.filters.partition import conflicts

__all__ = ["fabric_contradictions", "node_contradictions", "option_contradictions"]

BELIEVED = "whoever answers there, or is in between, would be believed"


def _parsed(value: object) -> Address | None:
    try:
        return value if isinstance(value, Address) else Address.parse(str(value))
    except ValueError:
        return None  # already reported by the field itself


def _same_address(places: list[tuple[Loc, object]]) -> Mistakes:
    seen: dict[Address, Loc] = {}
    for loc, value in places:
        address = _parsed(value)
        if address is None or address.port == 0:
            continue
        if address in seen:
            first = dotted(seen[address])
            yield loc, f"{address} is already taken by {first}; give each its own port"
        seen.setdefault(address, loc)


def _pending_too_small(data: Table) -> Mistakes:
    limits = raw_table(data, "limits")
    packet = limits.get("packet_bytes", Limits().packet_bytes)
    of_all = limits.get("pending_bytes", Limits().pending_bytes)
    of_address = limits.get("pending_bytes_per_address", packet)  # if not set, it is enough
    for name, pending in (("pending_bytes", of_all), ("pending_bytes_per_address", of_address)):
        if isinstance(packet, int) and isinstance(pending, int) and pending < packet:
            yield (
                ("limits", name if name in limits else "packet_bytes"),
                f"{name} ({pending}) is smaller than packet_bytes ({packet}), so the longest "
                f"packet could never be received; set {name} to {packet} or more",
            )


def _half_pair(section: Table, loc: Loc) -> Mistakes:
    for one, other in (("cert", "key"), ("key", "cert")):
        if one in section and other not in section:
            yield (*loc, other), f"is required because {dotted((*loc, one))} is set"


def _not_both(section: Table, loc: Loc, one: str, other: str) -> Mistakes:
    if one in section and other in section:
        yield (*loc, other), f"says what {dotted((*loc, one))} says already; remove one of the two"


def node_contradictions(data: Table) -> Mistakes:
    """Everything that two keys of a node's file say against each other."""
    listen, tls = raw_table(data, "listen"), raw_table(data, "tls")
    secure = [f"listen.{name}" for name in ("mqtts", "wss") if name in listen]
    if secure and "cert" not in tls and "key" not in tls:
        verb = "is" if len(secure) == 1 else "are"
        why = f"is required because {' and '.join(secure)} {verb} set; for example"
        yield ("tls", "cert"), f'{why} cert = "node.crt"'
        yield ("tls", "key"), f'{why} key = "node.key"'
    yield from _half_pair(tls, ("tls",))
    if tls.get("require_client_cert") is True and "client_ca" not in tls:
        yield (
            ("tls", "client_ca"),
            "is required because tls.require_client_cert is true; name the PEM file of the "
            "authorities whose client certificates are accepted",
        )
    yield from _broker_contradictions(data)
    yield from _source_contradictions(data, raw_table(data, "broker"), ("broker", "source"))
    yield from _same_interest(raw_tables(data, "interest"))
    yield from _link_contradictions(data, [(("listen", "link"), listen.get("link"))])
    yield from _peer_contradictions(data)
    if "admin_hosts" in listen and "admin" not in listen:
        yield ("listen", "admin_hosts"), "has no effect without listen.admin; set it or remove this"
    yield from _discovery_contradictions(data)
    if "advertise" in raw_table(data, "node") and "link" not in listen:
        yield ("node", "advertise"), "has no effect without listen.link; set it or remove this"
    places = [(("listen", name), value) for name, value in listen.items() if name != "admin_hosts"]
    default = Listen().mqtt
    if "mqtt" not in listen and default is not None:
        places.insert(0, (("listen", "mqtt"), default))
    yield from _same_address([*places])
    yield from _pending_too_small(data)


def _discovery_contradictions(data: Table) -> Mistakes:
    discovery, link = raw_table(data, "discovery"), raw_table(data, "link")
    yield from _group_contradictions(discovery, ("interface", "ttl"))
    told = [key for key in ("group", "seeds", "listen") if discovery.get(key)]
    if told and not {"secret", "secret_file"} & link.keys():
        yield (
            ("discovery", told[0]),
            "needs link.secret or link.secret_file: without one, anybody could announce a node and "
            "have this one dial it",
        )
    yield from _finds_in_vain(data, told[0] if told else "")


def _group_contradictions(discovery: Table, keys: tuple[str, ...]) -> Mistakes:
    """Keys that mean nothing without a group, and an interface that is none of its family."""
    for key in keys:
        if key in discovery and "group" not in discovery:
            yield ("discovery", key), "has no effect without discovery.group; set it or remove this"
    group, interface = _parsed(discovery.get("group")), discovery.get("interface")
    if group is None or not isinstance(interface, str) or not interface:
        return
    if ":" in group.host:
        if ip_version(interface) is not None:
            yield (
                ("discovery", "interface"),
                f'"{interface}" is an address; for an IPv6 group write the name of the interface, '
                'like "eth0"',
            )
    elif ip_version(interface) != 4:
        yield (
            ("discovery", "interface"),
            f'"{interface}" is no IPv4 address; for the group {group.host} write this machine\'s '
            'address in that network, like "192.0.2.7", or "127.0.0.1" for this machine alone',
        )


def _finds_in_vain(data: Table, key: str) -> Mistakes:
    if key and raw_table(data, "cooperation").get("algorithm") == "none":
        yield (
            ("cooperation", "algorithm"),
            f'"none" passes no message to another node, but discovery.{key} is to find some; write '
            '"tree" (the nodes build one) or "sf" (messages go where somebody listens), or remove '
            "[discovery]",
        )


def _broker_tables(data: Table) -> list[tuple[Loc, Table]]:
    """``[broker]``, or each ``[[broker]]``, and where it stands."""
    if isinstance(data.get("broker"), list):
        return [(("broker", index), table) for index, table in raw_tables(data, "broker")]
    return [(("broker",), raw_table(data, "broker"))]


def _broker_contradictions(data: Table) -> Mistakes:
    if data.get("broker") == []:
        yield ("broker",), "there must be at least one; begin it with [[broker]]"
    for loc, table in _broker_tables(data):
        yield from _contradictions_of_broker(data, loc, table)
    if isinstance(data.get("broker"), list):
        yield from _several_brokers(data)
    else:
        for key in OF_SEVERAL:
            if key in raw_table(data, "broker"):
                yield (
                    ("broker", key),
                    "is for one of several brokers; begin each with [[broker]], or remove this",
                )


def _contradictions_of_broker(data: Table, loc: Loc, broker: Table) -> Mistakes:
    broker_tls = raw_table(broker, "tls")
    yield from _half_pair(broker_tls, (*loc, "tls"))
    yield from _login_contradictions(broker, loc)
    url = _broker_url(broker)
    if url is None:
        return
    if broker_tls and url.scheme != "mqtts":
        yield (
            (*loc, "tls"),
            f"has no effect with {url}; write mqtts://… in {dotted((*loc, 'url'))} or remove the "
            "table",
        )
    if "username" in broker and url.scheme == "embedded":
        yield (
            (*loc, "username"),
            f'has no effect with url = "{url}": the embedded broker asks nobody; remove it',
        )
    for name, address in _listeners(data).items():
        if url.scheme != "embedded" and address == Address(url.host, url.port):
            yield (
                (*loc, "url"),
                f"{url} is this node's own listen.{name}; give the broker and the node "
                "different ports",
            )


def _source_contradictions(data: Table, table: Table, loc: Loc) -> Mistakes:
    """What a publisher is told is its broker's own affair if messages are taken from there."""
    cooperation = raw_table(data, "cooperation")
    topics = cooperation.get("confirm_topics")
    confirms = cooperation.get("confirm") == "fabric" or (
        isinstance(topics, dict) and "fabric" in topics.values()
    )
    if table.get("source") == "broker" and confirms:
        yield (
            loc,
            '"broker" contradicts confirm = "fabric" of [cooperation]: publishers are acknowledged '
            "by their broker before the node has the message, and those that connect to it "
            'directly never ask the node; write source = "clients" or confirm = "local"',
        )


def _same_interest(tables: Iterable[tuple[int, Table]]) -> Mistakes:
    seen: dict[str, int] = {}
    for index, table in tables:
        topic_filter = table.get("filter")
        if isinstance(topic_filter, str):
            if topic_filter in seen:
                first = dotted(("interest", seen[topic_filter]))
                yield ("interest", index, "filter"), f"stands in {first} already; remove one"
            seen.setdefault(topic_filter, index)


def _places_topics(data: Table) -> bool:
    """Whether the algorithm says where a topic lives."""
    try:
        return load(raw_table(data, "cooperation").get("algorithm", "sf")).places_topics
    except (AlgorithmError, TypeError):
        return False  # reported by the field itself


def _several_brokers(data: Table) -> Mistakes:
    """Each has a name and an address of its own, and each topic one broker."""
    tables = raw_tables(data, "broker")
    yield from same_ids("broker", tables, "name")
    first: dict[str, int] = {}
    default: int | None = None
    for index, table in tables:
        if "name" not in table:
            yield ("broker", index, "name"), 'is required with [[broker]]; for example name = "a"'
        url = _broker_url(table)
        if url is not None and url.scheme == "embedded":
            yield (
                ("broker", index, "url"),
                '"embedded:" is a broker that stands alone; write [broker], or the address of a '
                "broker that runs",
            )
        elif url is not None and first.setdefault(str(url), index) != index:
            yield (
                ("broker", index, "url"),
                f"{url} is broker[{first[str(url)]}] already; a broker stands there once",
            )
        if table.get("source") == "broker":
            yield (
                ("broker", index, "source"),
                '"broker" is for one broker; write [broker], or source = "clients"',
            )
        if table.get("topics") == []:
            yield (
                ("broker", index, "topics"),
                'must not be empty; remove it, or write for example topics = ["plant/#"]',
            )
        if _places_topics(data):
            if "topics" in table:
                yield (
                    ("broker", index, "topics"),
                    "has no effect: the algorithm itself says where a topic lives; remove it",
                )
            continue
        if "topics" in table:
            continue
        if default is not None:
            yield (
                ("broker", index, "topics"),
                f"is required because broker[{default}] has none: one broker at most gets what no "
                'other has; for example topics = ["plant/#"]',
            )
        else:
            default = index
    yield from _topics_of_two(tables)


def _topics_of_two(tables: list[tuple[int, Table]]) -> Mistakes:
    filters: dict[str, list[str]] = {}
    for index, table in tables:
        topics = table.get("topics")
        try:
            filters[str(index)] = [topic_filter(each) for each in topics or ()]
        except (TypeError, ValueError):
            return  # already reported by the field itself
    for found in conflicts(filters):
        yield (
            ("broker", int(found.owner), "topics"),
            f'"{found.filter}" and "{found.other_filter}" of broker[{found.other_owner}] both '
            f'match "{found.topic}", and neither lies within the other; a topic has one broker',
        )
        return  # one of them shows what is meant


def _login_contradictions(section: Table, loc: Loc) -> Mistakes:
    yield from _not_both(section, loc, "password", "password_file")
    for name in ("password", "password_file"):
        if name in section and "username" not in section:
            # [MQTT-3.1.2-22]: no password without a user name.
            yield (*loc, "username"), f"is required because {dotted((*loc, name))} is set"
            return


def _link_contradictions(data: Table, listeners: list[tuple[Loc, object]]) -> Mistakes:
    """``[link]`` and ``[cooperation]``, which nodes' and fabrics' files have alike."""
    link = raw_table(data, "link")
    tls = raw_table(link, "tls")
    yield from _not_both(link, ("link",), "secret", "secret_file")
    files = [name for name in ("cert", "key", "ca") if name in tls]
    for name in ("cert", "key", "ca"):
        if files and name not in files:
            yield (
                ("link", "tls", name),
                f"is required because link.tls.{files[0]} is set: both ends of a link show a "
                "certificate and check the other's",
            )
    if not _is_protected(data):
        for loc, value in listeners:
            address = _parsed(value) if value is not None else None
            if address is not None and not is_loopback(address.host):
                yield (
                    loc,
                    _unprotected(address, "whoever reaches it could link to this node or listen"),
                )
    cooperation = raw_table(data, "cooperation")
    if "algorithm" not in cooperation:
        for name in difflib.get_close_matches("algorithm", cooperation, 1):
            yield ("cooperation", name), unknown_key(name, ["algorithm"])


def _is_protected(data: Table) -> bool:
    """Whether nobody between two machines can read or change what nodes say to each other."""
    link = raw_table(data, "link")
    has_secret = bool({"secret", "secret_file"} & link.keys())
    return bool(raw_table(link, "tls")) or (has_secret and link.get("private_network") is True)


def _unprotected(address: Address, danger: str) -> str:
    return f"{address} is not on this machine alone, and {danger}; {PROTECT}"


def _peer_contradictions(data: Table) -> Mistakes:
    own = _listeners(data)
    urls = [_broker_url(table) for _, table in _broker_tables(data)]
    brokers = {Address(url.host, url.port) for url in urls if url is not None}
    first: dict[Address, int] = {}
    for index, table in raw_tables(data, "peer"):
        if (address := _parsed(table.get("address"))) is None:
            continue
        loc: Loc = ("peer", index, "address")
        listener = next((name for name, at in own.items() if at == address), None)
        if listener == "link":
            yield loc, f"{address} is this node's own listen.link; name another node's"
        elif listener is not None:
            yield loc, f"{address} is this node's own listen.{listener}, not another node"
        elif address in brokers:
            yield (
                loc,
                f"{address} is the broker of this node; a peer is another node, by the address "
                "of its [listen] link",
            )
        elif address in first:
            yield loc, f"{address} is already peer[{first[address]}]; remove one of the two"
        elif not is_loopback(address.host) and not _is_protected(data):
            yield loc, _unprotected(address, BELIEVED)
        first.setdefault(address, index)
    yield from _alone_with_peers(data, ("cooperation", "algorithm"), bool(first))
    yield from _rules_contradictions(data)
    yield from _retained_contradictions(data)


def _retained_contradictions(data: Table) -> Mistakes:
    cooperation = raw_table(data, "cooperation")
    algorithm = cooperation.get("algorithm", Cooperation().algorithm)
    if cooperation.get("retained") != "routed" or not isinstance(algorithm, str):
        return
    try:
        able = load(algorithm).routes_retained
    except AlgorithmError:
        return  # already reported by the field itself
    if not able:
        yield ("cooperation", "retained"), not_routed(algorithm)


def _rules_contradictions(data: Table) -> Mistakes:
    """Rules of links that an algorithm cannot have, that are too long, or let nothing through."""
    algorithm = raw_table(data, "cooperation").get("algorithm", Cooperation().algorithm)
    for index, table in raw_tables(data, "peer"):
        given = [key for key in ("out", "in", "prefix") if key in table]
        if not given:
            continue
        loc: Loc = ("peer", index, given[0])
        if isinstance(algorithm, str) and algorithm != "none" and not _obeys_rules(algorithm):
            yield loc, no_rules(algorithm)
            continue
        lists = [table.get(key) for key in ("out", "in")]
        if all(isinstance(each, list) and not each for each in lists):
            yield (
                loc,
                "with out = [] and in = [] nothing crosses this link; remove the peer instead",
            )
            continue
        try:
            out, into = (None if each is None else tuple(each) for each in lists)
            check_rules(LinkRules(out, into, table.get("prefix", "")))
        except ValueError as error:
            if "greeting" in str(error):
                yield loc, str(error)
        except (TypeError, AttributeError):
            pass  # already reported by the field itself


def _obeys_rules(algorithm: str) -> bool:
    try:
        return load(algorithm).obeys_rules
    except AlgorithmError:
        return True  # already reported by the field itself


def _alone_with_peers(data: Table, loc: Loc, has_peers: bool) -> Mistakes:
    if has_peers and raw_table(data, "cooperation").get("algorithm") == "none":
        yield (
            loc,
            '"none" passes no message to a peer, but there are peers; write "sf" (messages go '
            'where somebody listens) or "pf" (everywhere), or remove the peers',
        )


def _listeners(data: Table) -> dict[str, Address | None]:
    given = {"mqtt": Listen().mqtt, **raw_table(data, "listen")}
    return {name: _parsed(value) for name, value in given.items()}


def _broker_url(broker: Table) -> BrokerUrl | None:
    try:
        return BrokerUrl.parse(str(broker.get("url")))
    except ValueError:
        return None  # already reported by the field itself


def fabric_contradictions(data: Table) -> Mistakes:
    """Everything that two keys of a fabric's file say against each other."""
    if data.get("node") == []:
        yield ("node",), "a fabric has at least one node; begin each with [[node]]"
    nodes = raw_tables(data, "node")
    yield from same_ids("node", nodes)
    for index, table in nodes:
        yield from _fabric_login(index, table)
        yield from _source_contradictions(data, table, ("node", index, "source"))
    places: list[tuple[Loc, object]] = [
        (("node", index, name), table.get(name))
        for index, table in nodes
        for name in ("mqtt", "ws", "admin", "link")
    ]
    yield from _same_address(places)
    yield from _link_contradictions(
        data, [(("node", index, "link"), table.get("link")) for index, table in nodes]
    )
    yield from _fabric_peers(nodes, _is_protected(data))
    has_peers = any(table.get("peers") for _, table in nodes)
    yield from _alone_with_peers(data, ("cooperation", "algorithm"), has_peers)
    yield from _retained_contradictions(data)
    yield from _fabric_discovery(data, nodes)
    yield from _pending_too_small(data)


def option_contradictions(data: Table) -> Mistakes:
    """What the algorithm says of its own keys, which no file's model knows."""
    cooperation = raw_table(data, "cooperation")
    name = cooperation.get("algorithm", Cooperation().algorithm)
    if not isinstance(name, str):
        return
    try:
        own = Cooperation.model_fields
        check_options(name, {key: each for key, each in cooperation.items() if key not in own})
    except AlgorithmError:
        return  # already reported by the field itself
    except ValueError as error:
        (mistake,) = option_error(error).mistakes
        yield tuple(mistake.key.split(".")), mistake.problem


def _fabric_discovery(data: Table, nodes: list[tuple[int, Table]]) -> Mistakes:
    discovery = raw_table(data, "discovery")
    yield from _group_contradictions(discovery, ("interface", "ttl", "every_s"))
    group = _parsed(discovery.get("group"))
    if group is None:
        return
    if ":" in group.host and "interface" not in discovery:
        yield (
            ("discovery", "interface"),
            "is required for an IPv6 group: the name of the interface, like "
            '"lo"; or write an IPv4 group, like "239.255.77.84:0"',
        )
    for index, table in nodes:
        address = _parsed(table.get("link"))
        if address is not None and address.host in ("0.0.0.0", "::"):
            yield (
                ("node", index, "link"),
                f"{address} is every address of this machine, but with [discovery] the others are "
                "told where to dial; write one of them",
            )
    yield from _finds_in_vain(data, "group")


def _fabric_login(index: int, table: Table) -> Mistakes:
    loc: Loc = ("node", index)
    yield from _login_contradictions(table, loc)
    kind = table.get("broker", "auto")
    if "username" in table and isinstance(kind, str) and (":" not in kind or kind == "embedded:"):
        yield (
            (*loc, "username"),
            f'has no effect with broker = "{kind}", which the fabric starts itself and whose '
            "password it knows; it is for a broker that is named by its URL",
        )


def _fabric_peers(nodes: list[tuple[int, Table]], protected: bool) -> Mistakes:
    ids = [table["id"] for _, table in nodes if isinstance(table.get("id"), str)]
    for index, table in nodes:
        peers = table.get("peers")
        texts = [peer for peer in peers if isinstance(peer, str)] if isinstance(peers, list) else []
        for problem in _wrong_peers(texts, ids, table, protected):
            yield ("node", index, "peers"), problem
            break  # one line of the file, one mistake at a time


def _wrong_peers(
    peers: list[str], ids: Iterable[str], table: Table, protected: bool
) -> Iterator[str]:
    seen: set[str] = set()
    for peer in peers:
        if peer in seen:
            yield f'"{peer}" is named twice; remove one of the two'
        seen.add(peer)
        if ":" in peer:
            yield from _wrong_peer_address(peer, table, protected)
        elif peer == table.get("id"):
            yield f'"{peer}" is this node itself; name another one'
        elif peer not in ids:
            others = known_names(peer, sorted({*ids} - {table.get("id")}), "none but this one")
            yield (
                f'"{peer}" is not a node of this file{others}; '
                'or write the address of a node elsewhere, "host:port"'
            )


def _wrong_peer_address(peer: str, table: Table, protected: bool) -> Iterator[str]:
    try:
        address = Address.parse(peer)
    except ValueError as error:
        yield str(error)
        return
    if address.port == 0:
        yield f'"{peer}" has no port to connect to; write the port of that node\'s [listen] link'
    elif address == _parsed(table.get("link")):
        yield f'"{peer}" is this node\'s own link address; name another node'
    elif not is_loopback(address.host) and not protected:
        yield _unprotected(address, BELIEVED)
