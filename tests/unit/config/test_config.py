"""Configuration files: what is accepted, and every mistake with its file, key, line and remedy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import get_args, get_origin

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from isthmus.config.addresses import Address, BrokerUrl
from isthmus.config.files import (
    FabricConfig,
    NodeConfig,
    PeerTable,
    is_fabric_file,
    load_fabric_config,
    load_node_config,
    peer_from,
)
from isthmus.config.toml_lines import KeyLines
from isthmus.cooperation.link_rules import LinkRules
from isthmus.errors import ConfigError, ConfigMistake, IsthmusError
from isthmus.fabric.joining import for_this_run
from isthmus.fabric.links import fabric_links, notes
from isthmus.fabric.node_file import node_file

MINIMAL = '[node]\nid = "edge-1"\n\n[broker]\nurl = "mqtt://127.0.0.1:1884"\n'
REFERENCE = Path(__file__).parents[3] / "docs" / "reference" / "configuration.md"

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def to_file(text: str) -> Path:
        path = tmp_path / "file.toml"
        path.write_text(text)
        return path

    return to_file


def mistakes_of(load: Callable[[Path], object], path: Path) -> dict[str, ConfigMistake]:
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert all(mistake.file == str(path) for mistake in caught.value.mistakes)
    return {mistake.key: mistake for mistake in caught.value.mistakes}


def node_mistakes(path: Path) -> dict[str, ConfigMistake]:
    return mistakes_of(load_node_config, path)


# ---- what is accepted ------------------------------------------------------------------------


def test_a_minimal_file_has_every_default(write: Write) -> None:
    config = load_node_config(write(MINIMAL))
    assert config.node.id == "edge-1"
    assert config.node.state_dir is None
    assert config.listen.mqtt == Address("127.0.0.1", 1883)
    assert config.listen.admin is None
    assert config.broker.url == BrokerUrl("mqtt", "127.0.0.1", 1884)
    assert config.broker.tls.verify is True
    assert config.limits.packet_bytes == 16 * 1024 * 1024
    assert config.limits.drain_s == 4.0
    assert config.log.level == "info"
    assert config.listen.link is None
    assert config.link.qos == 1
    assert config.link.lanes == 1
    assert config.link.spread == "topic"
    assert config.link.secret_bytes() == b""
    assert config.link.tls.cert is None
    assert config.peer == ()
    assert config.cooperation.algorithm == "sf"
    assert config.cooperation.options == {}
    assert config.broker.username is None
    assert config.broker.password_bytes() is None


def test_every_key_can_be_set(tmp_path: Path, write: Write) -> None:
    for name in ("node.crt", "node.key", "ca.crt"):
        (tmp_path / name).write_text("PEM")
    config = load_node_config(
        write(
            """
            [node]
            id = "a.b_c-9"
            state_dir = "state"
            [listen]
            mqtt = "0.0.0.0:1883"
            mqtts = "[::1]:8883"
            ws = "localhost:0"
            wss = "127.0.0.1:8443"
            admin = "127.0.0.1:9883"
            admin_hosts = ["node-1.example"]
            link = "0.0.0.0:7883"
            [tls]
            cert = "node.crt"
            key = "node.key"
            client_ca = "ca.crt"
            require_client_cert = true
            [broker]
            url = "mqtts://broker.example"
            username = "isthmus"
            password = "pass word "
            tls = { ca = "ca.crt", cert = "node.crt", key = "node.key", verify = false }
            [link]
            qos = 2
            lanes = 64
            spread = "round-robin"
            dead_after_s = 0.2
            hold_s = 0
            queue_bytes = 65536
            secret = "sixteen chars or more"
            tls = { cert = "node.crt", key = "node.key", ca = "ca.crt" }
            [[peer]]
            address = "other.example:7883"
            [[peer]]
            address = "[2001:db8::1]:7883"
            lanes = 2
            qos = 0
            [cooperation]
            algorithm = "pf"
            [limits]
            packet_bytes = 268435460
            connect_bytes = 1024
            property_bytes = 1024
            filters_per_packet = 8
            filters_per_client = 50
            topic_levels = 7
            clients = 5
            connect_timeout_s = 1
            broker_timeout_s = 0.5
            buffer_bytes = 4096
            pending_bytes = 536870912
            pending_bytes_per_address = 268435460
            drain_s = 0
            [log]
            level = "debug"
            format = "json"
            """
        )
    )
    assert config.node.state_dir == tmp_path / "state"
    assert config.tls.cert == tmp_path / "node.crt"
    assert config.listen.mqtts == Address("::1", 8883)
    assert config.listen.ws == Address("localhost", 0)
    assert config.broker.url == BrokerUrl("mqtts", "broker.example", 8883)
    assert config.broker.tls.ca == tmp_path / "ca.crt"
    assert config.broker.tls.verify is False
    assert config.limits.connect_timeout_s == 1.0
    assert config.broker.password_bytes() == b"pass word "
    assert config.link.secret_bytes() == b"sixteen chars or more"
    assert config.link.tls.ca == tmp_path / "ca.crt"
    assert [str(peer.address) for peer in config.peer] == [
        "other.example:7883",
        "[2001:db8::1]:7883",
    ]
    assert [(peer.lanes, peer.qos) for peer in config.peer] == [(None, None), (2, 0)]


def test_models_are_frozen(write: Write) -> None:
    config = load_node_config(write(MINIMAL))
    with pytest.raises(ValidationError):
        config.limits.clients = 3


def test_embedded_broker(write: Write) -> None:
    config = load_node_config(write('[node]\nid = "a"\n[broker]\nurl = "embedded:"\n'))
    assert config.broker.url.scheme == "embedded"
    assert str(config.broker.url) == "embedded:"


@given(
    st.one_of(
        st.from_regex(r"[a-z0-9][a-z0-9.-]{0,20}", fullmatch=True),
        st.ip_addresses().map(str),
    ),
    st.integers(0, 65535),
)
def test_an_address_prints_as_it_is_read(host: str, port: int) -> None:
    address = Address(host, port)
    assert Address.parse(str(address)) == address


def test_a_broker_url_prints_as_it_is_read() -> None:
    for text in ("mqtt://h:1", "mqtts://h:8883", "mqtt://[::1]:1883", "embedded:"):
        assert str(BrokerUrl.parse(text)) == text


# ---- mistakes in one key ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "key", "words"),
    [
        ('[listen]\nmqtt = ":1883"', "listen.mqtt", ["names no host", '"127.0.0.1:1883"']),
        ('[listen]\nmqtt = "127.0.0.1"', "listen.mqtt", ["no port", "host:port"]),
        ('[listen]\nmqtt = "::1:1883"', "listen.mqtt", ["brackets", "[::1]:1883"]),
        ('[listen]\nmqtt = "a:65536"', "listen.mqtt", ["65536", "65535"]),
        ('[listen]\nmqtt = "a:-1"', "listen.mqtt", ["'-1' is not a port"]),
        ('[listen]\nmqtt = "a b:1"', "listen.mqtt", ["neither a host name nor an IP"]),
        ("[listen]\nmqtt = 1883", "listen.mqtt", ["string in quotes", "1883"]),
        ('[listen]\nmqqt = "a:1"', "listen.mqqt", ["did you mean 'mqtt'?"]),
        ("[listen]\nzzzzzz = 1", "listen.zzzzzz", ["unknown key", "admin"]),
        ('[listen]\nadmin_hosts = ["a"]', "listen.admin_hosts", ["no effect without listen.admin"]),
        (
            '[listen]\nadmin_hosts = ["http://a:1/"]\nadmin = "127.0.0.1:9883"',
            "listen.admin_hosts[0]",
            ["'http://a:1/' is not a host name", "node-1.example", "without a port"],
        ),
        ("[limitz]\nclients = 1", "limitz", ["did you mean 'limits'?"]),
        ('[limits]\nclients = "10"', "limits.clients", ["an integer", '"10"', "clients = "]),
        ("[limits]\nclients = 0", "limits.clients", ["greater than or equal to 1", "not 0"]),
        ("[limits]\nclients = true", "limits.clients", ["an integer", "true"]),
        ("[limits]\npacket_bytes = 268435461", "limits.packet_bytes", ["268435460"]),
        ("[limits]\ndrain_s = inf", "limits.drain_s", ["finite"]),
        ("[limits]\ndrain_s = -1", "limits.drain_s", ["greater than or equal to 0"]),
        ("[limits]\nconnect_timeout_s = 0", "limits.connect_timeout_s", ["greater than 0"]),
        ('[log]\nlevel = "loud"', "log.level", ["'debug'", "'error'", '"loud"']),
        ('[tls]\nclient_ca = "no.pem"', "tls.client_ca", ["there is no file", "no.pem"]),
        ("[tls]\nrequire_client_cert = 1", "tls.require_client_cert", ["boolean", "1"]),
        ("[link]\nqos = 3", "link.qos", ["0, 1 or 2", "not 3"]),
        ("[link]\nqos = true", "link.qos", ["0, 1 or 2"]),
        ("[link]\nlanes = 65", "link.lanes", ["less than or equal to 64"]),
        ("[link]\nsessions = 2", "link.sessions", ["is called 'lanes' now"]),
        ('[[peer]]\nsessions = 2\naddress = "127.0.0.1:7"', "peer[0].sessions", ["'lanes' now"]),
        ('[link]\nspread = "random"', "link.spread", ["'topic'", "'round-robin'"]),
        ("[link]\ndead_after_s = 0.1", "link.dead_after_s", ["0.2"]),
        ("[link]\nhold_s = 90000.0", "link.hold_s", ["86400"]),
        ("[link]\nqueue_bytes = 1", "link.queue_bytes", ["65536"]),
        ('[link]\nsecret = "short-one"', "link.secret", ["9 characters", "16 or more"]),
        ('[link]\nsecret = "aaaabbbbccccdddd"', "link.secret", ["4 different", "openssl rand"]),
        ('[link]\nsecret = "passwordpassword"', "link.secret", ["repeats", "openssl rand"]),
        ('[link]\nsecret_file = "no.txt"', "link.secret_file", ["there is no file", "no.txt"]),
        ('[cooperation]\nalgorithm = "fs"', "cooperation.algorithm", ["not known", "pf, sf"]),
        ("[cooperation]\nalgorithm = 1", "cooperation.algorithm", ["string in quotes"]),
        ('[cooperation]\nalgoritm = "pf"', "cooperation.algoritm", ["did you mean 'algorithm'?"]),
        ('[peer]\naddress = "h:1"', "peer", ["[[peer]]", "double brackets"]),
        ('[[peer]]\naddress = "127.0.0.1:0"', "peer[0].address", ["no port", "[listen] link"]),
        ('[[peer]]\naddress = "0.0.0.0:7"', "peer[0].address", ["where to listen", "host"]),
        ('[[peer]]\nadress = "127.0.0.1:7"', "peer[0].adress", ["did you mean 'address'?"]),
        ("[[peer]]\nqos = 1", "peer[0].address", ["is required", "address = "]),
    ],
)
def test_one_mistake_is_reported_once_with_its_line(
    write: Write, line: str, key: str, words: list[str]
) -> None:
    found = node_mistakes(write(MINIMAL + line + "\n"))
    if key == "peer[0].adress":  # and so the address is missing
        assert found.pop("peer[0].address").line == MINIMAL.count("\n") + 1
    assert list(found) == [key]
    in_table = "." in key and "is required" not in found[key].problem
    assert found[key].line == MINIMAL.count("\n") + (2 if in_table else 1)
    for word in words:
        assert word in found[key].problem


@pytest.mark.parametrize(
    ("url", "word"),
    [
        ("http://a", "is not a broker's address"),
        ("mqtt://", "is not a broker's address"),
        ("127.0.0.1:1883", "is not a broker's address"),
        ("mqtt://a:0", "cannot be 0"),
        ("mqtt://a:99999", "ut of range"),
        ("mqtt://user:secret@a:1", "clients present their own"),
        ("mqtt://a:1/path", "goes on after the port"),
        ("embedded", "is not a broker's address"),
    ],
)
def test_wrong_broker_urls(write: Write, url: str, word: str) -> None:
    found = node_mistakes(write(f'[node]\nid = "a"\n[broker]\nurl = "{url}"\n'))
    assert list(found) == ["broker.url"]
    assert word in found["broker.url"].problem
    assert "secret" not in str(found["broker.url"])


@pytest.mark.parametrize("node_id", ["", "a b", "a/b", "x" * 65, "ä", "a\\n"])
def test_wrong_node_ids(write: Write, node_id: str) -> None:
    found = node_mistakes(write(MINIMAL.replace("edge-1", node_id)))
    assert list(found) == ["node.id"]
    assert 'for example id = "edge-1"' in found["node.id"].problem


def test_required_tables_and_keys(write: Write) -> None:
    assert set(node_mistakes(write(""))) == {"node", "broker"}
    found = node_mistakes(write("[node]\n[broker]\n"))
    assert {key: mistake.line for key, mistake in found.items()} == {"node.id": 1, "broker.url": 2}
    assert 'url = "mqtt://' in found["broker.url"].problem


def test_a_table_that_is_a_value(write: Write) -> None:
    found = node_mistakes(write('node = "a"\n[broker]\nurl = "mqtt://a"\n'))
    assert list(found) == ["node"]
    assert "[node] on a line of its own" in found["node"].problem


# ---- mistakes between keys -------------------------------------------------------------------


def test_secure_listeners_need_a_certificate(write: Write) -> None:
    found = node_mistakes(write(MINIMAL + '[listen]\nwss = "a:1"\n'))
    assert set(found) == {"tls.cert", "tls.key"}
    assert "because listen.wss is set" in found["tls.cert"].problem


def test_half_of_a_pair(write: Write, tmp_path: Path) -> None:
    (tmp_path / "x.pem").write_text("PEM")
    text = MINIMAL.replace("mqtt://", "mqtts://")
    found = node_mistakes(write(text + '[tls]\ncert = "x.pem"\n[broker.tls]\nkey = "x.pem"\n'))
    assert set(found) == {"tls.key", "broker.tls.cert"}


def test_client_certificates_need_an_authority(write: Write) -> None:
    found = node_mistakes(write(MINIMAL + "[tls]\nrequire_client_cert = true\n"))
    assert set(found) == {"tls.client_ca"}


def test_broker_tls_without_mqtts(write: Write) -> None:
    found = node_mistakes(write(MINIMAL + "[broker.tls]\nverify = false\n"))
    assert set(found) == {"broker.tls"}


def test_a_node_in_front_of_itself(write: Write) -> None:
    found = node_mistakes(write(MINIMAL.replace("1884", "1883")))
    assert set(found) == {"broker.url"}
    assert "this node's own listen.mqtt" in found["broker.url"].problem


def test_two_listeners_on_one_address(write: Write) -> None:
    found = node_mistakes(write(MINIMAL + '[listen]\nadmin = "127.0.0.1:1883"\n'))
    assert set(found) == {"listen.admin"}
    assert "already taken by listen.mqtt" in found["listen.admin"].problem


def test_pending_bytes_below_packet_bytes(write: Write) -> None:
    found = node_mistakes(write(MINIMAL + "[limits]\npending_bytes = 70000\n"))
    assert set(found) == {"limits.pending_bytes"}


PEER = '[[peer]]\naddress = "127.0.0.1:9"\n'
LINKED = MINIMAL + '[listen]\nlink = "127.0.0.1:7883"\n'


@pytest.mark.parametrize(
    ("text", "key", "words"),
    [
        ('[[peer]]\naddress = "127.0.0.1:7883"', "peer[0].address", ["own listen.link"]),
        ('[[peer]]\naddress = "127.0.0.1:1883"', "peer[0].address", ["own listen.mqtt"]),
        ('[[peer]]\naddress = "127.0.0.1:1884"', "peer[0].address", ["is the broker"]),
        (
            '[[peer]]\naddress = "127.0.0.1:9"\n[[peer]]\naddress = "127.0.0.1:9"',
            "peer[1].address",
            ["already peer[0]"],
        ),
        ('[[peer]]\naddress = "192.0.2.7:9"', "peer[0].address", ["in between", "link.tls"]),
        (
            '[[peer]]\naddress = "127.0.0.1:9"\n[cooperation]\nalgorithm = "none"',
            "cooperation.algorithm",
            ["there are peers", '"sf"'],
        ),
        (f'{PEER}out = ["a/#/b"]', "peer[0].out[0]", ["# that is not the whole"]),
        (f'{PEER}in = ["a", "$SYS/#"]', "peer[0].in[1]", ["stays with its broker"]),
        (f'{PEER}out = "a/#"', "peer[0].out", ["must be a list", '["plant/#"]']),
        (f'{PEER}inn = ["a/#"]', "peer[0].inn", ["did you mean 'in'?"]),
        (f'{PEER}prefix = "site-1"', "peer[0].prefix", ["slash", '"site-1/"']),
        (f'{PEER}prefix = "a/+/"', "peer[0].prefix", ["wildcard"]),
        (f"{PEER}out = {['x' * 200 + str(n) for n in range(40)]}", "peer[0].out", ["4096"]),
        (f"{PEER}out = []\nin = []", "peer[0].out", ["nothing crosses"]),
        (
            f'{PEER}in = ["a/#"]\n[cooperation]\nalgorithm = "tree"',
            "peer[0].in",
            ["knows no rules", "pf or sf"],
        ),
        (
            '[cooperation]\nalgorithm = "pf"\nretained = "routed"',
            "cooperation.retained",
            ["cannot route retained messages", "sf"],
        ),
    ],
)
def test_peers_that_cannot_be_meant(write: Write, text: str, key: str, words: list[str]) -> None:
    found = node_mistakes(write(f"{LINKED}{text}\n"))
    assert list(found) == [key]
    assert all(word in found[key].problem for word in words)


def test_a_link_that_others_reach_needs_proof(write: Write, tmp_path: Path) -> None:
    opened = MINIMAL + '[listen]\nlink = "0.0.0.0:7883"\n'
    found = node_mistakes(write(opened))
    assert set(found) == {"listen.link"}
    assert "link.secret_file" in found["listen.link"].problem
    secret = '[link]\nsecret = "0123456789abcdef"\n'
    alone = node_mistakes(write(opened + secret))  # does not keep anybody from changing messages
    assert set(alone) == {"listen.link"}
    assert "link.private_network = true" in alone["listen.link"].problem
    said = "private_network = true\n"
    assert load_node_config(write(opened + secret + said)).link.leaves_the_machine
    assert set(node_mistakes(write(opened + "[link]\n" + said))) == {"listen.link"}
    (tmp_path / "x.pem").write_text("PEM")
    tls = '[link.tls]\ncert = "x.pem"\nkey = "x.pem"\nca = "x.pem"\n'
    assert load_node_config(write(opened + tls))


def test_link_tls_is_all_three_files(write: Write, tmp_path: Path) -> None:
    (tmp_path / "x.pem").write_text("PEM")
    found = node_mistakes(write(MINIMAL + '[link.tls]\nkey = "x.pem"\n'))
    assert set(found) == {"link.tls.cert", "link.tls.ca"}
    assert "because link.tls.key is set" in found["link.tls.ca"].problem


def test_secrets_come_from_a_file_or_from_the_key_but_not_both(
    write: Write, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_bytes(b"  0123456789abcdef\xff\n\n")
    text = MINIMAL + '[link]\nsecret_file = "secret"\n'
    assert load_node_config(write(text)).link.secret_bytes() == b"0123456789abcdef\xff"
    found = node_mistakes(write(text + 'secret = "0123456789abcdef"\n'))
    assert set(found) == {"link.secret_file"}
    (tmp_path / "secret").write_text("  0123456789abcd \n")
    found = node_mistakes(write(text))
    assert set(found) == {"link.secret_file"}
    assert "14 characters" in found["link.secret_file"].problem


def test_the_nodes_own_login(write: Write, tmp_path: Path) -> None:
    (tmp_path / "pw").write_text(" with blanks \n")
    text = MINIMAL + 'username = "isthmus"\npassword_file = "pw"\n'
    assert load_node_config(write(text)).broker.password_bytes() == b" with blanks "
    assert set(node_mistakes(write(text + 'password = "x"\n'))) == {"broker.password_file"}
    assert set(node_mistakes(write(MINIMAL + 'password = "x"\n'))) == {"broker.username"}
    embedded = MINIMAL.replace("mqtt://127.0.0.1:1884", "embedded:") + 'username = "a"\n'
    assert set(node_mistakes(write(embedded))) == {"broker.username"}


def test_where_messages_come_from(write: Write) -> None:
    assert load_node_config(write(MINIMAL)).broker.source == "clients"
    text = MINIMAL + 'source = "broker"\n'
    wanted = '[[interest]]\nfilter = "a/+"\n[[interest]]\nfilter = "b/#"\n'
    config = load_node_config(write(text + wanted))
    assert (config.broker.source, [each.filter for each in config.interest]) == (
        "broker",
        ["a/+", "b/#"],
    )
    assert set(node_mistakes(write(MINIMAL + 'source = "both"\n'))) == {"broker.source"}


@pytest.mark.parametrize("confirm", ['confirm = "fabric"', 'confirm_topics = { "a/" = "fabric" }'])
def test_what_comes_from_the_broker_is_not_confirmed_by_the_fabric(
    write: Write, confirm: str
) -> None:
    text = MINIMAL + f'source = "broker"\n[cooperation]\n{confirm}\n'
    found = node_mistakes(write(text))
    assert set(found) == {"broker.source"}
    assert 'confirm = "local"' in found["broker.source"].problem
    assert load_node_config(write(text.replace('"broker"', '"clients"')))


@pytest.mark.parametrize(
    ("topic_filter", "problem"),
    [
        ("$SYS/#", "starts with $"),
        ("$share/g/t", "starts with $"),
        ("a/#/b", "is no topic filter"),
        ("", "is no topic filter"),
        ("/".join("a" * 200), "levels"),
    ],
)
def test_interest_is_a_filter_that_others_can_send_to(
    write: Write, topic_filter: str, problem: str
) -> None:
    found = node_mistakes(write(MINIMAL + f'[[interest]]\nfilter = "{topic_filter}"\n'))
    assert set(found) == {"interest[0].filter"}
    assert problem in found["interest[0].filter"].problem


def test_interest_is_named_once(write: Write) -> None:
    twice = '[[interest]]\nfilter = "a"\n' * 2
    assert set(node_mistakes(write(MINIMAL + twice))) == {"interest[1].filter"}


@pytest.mark.parametrize("line", ['secret = "hunter2"', "secret = 1234567", 'secret = ["hunter2"]'])
def test_a_wrong_secret_is_not_repeated(write: Write, line: str) -> None:
    found = node_mistakes(write(f"{MINIMAL}[link]\n{line}\n"))
    assert set(found) == {"link.secret"}
    assert "hunter2" not in str(found["link.secret"])
    assert "1234567" not in str(found["link.secret"])


def test_secrets_are_hidden_wherever_a_model_is_shown(write: Write) -> None:
    text = MINIMAL + 'username = "u"\npassword = "hunter2"\n[link]\nsecret = "0123456789abcdef"\n'
    config = load_node_config(write(text))
    for shown in (repr(config), str(config), str(config.model_dump(mode="json"))):
        assert "hunter2" not in shown
        assert "0123456789abcdef" not in shown
    assert config.model_dump(mode="json")["link"]["secret"] == "(hidden)"
    assert config.model_dump()["link"]["secret"] == "0123456789abcdef"


def test_an_algorithms_own_keys_are_passed_on(write: Write) -> None:
    text = MINIMAL + '[cooperation]\nalgorithm = "sf"\ndepth = 3\noptions = ["a"]\n'
    assert load_node_config(write(text)).cooperation.options == {"depth": 3, "options": ["a"]}


def test_rules_of_a_link(write: Write) -> None:
    text = f'{MINIMAL}{PEER}out = ["plant/#"]\nin = ["orders/#", "time"]\nprefix = "site-1/"\n'
    (peer,) = load_node_config(write(text)).peer
    assert peer.rules == LinkRules(("plant/#",), ("orders/#", "time"), "site-1/")
    assert peer.model_dump(mode="json")["in"] == ["orders/#", "time"]
    (free,) = load_node_config(write(MINIMAL + PEER)).peer
    assert not free.rules
    assert peer_from({"address": "h:1", "in": ["a"]}).rules.into == ("a",)


def test_a_peer_by_itself() -> None:
    assert peer_from({"address": "h:1", "qos": 0}) == PeerTable(address=Address("h", 1), qos=0)
    with pytest.raises(ConfigError) as caught:
        peer_from({"address": "h:0", "qos": 3, "session": 1})
    assert {mistake.key for mistake in caught.value.mistakes} == {"address", "qos", "session"}


def test_all_mistakes_come_at_once_in_the_order_of_the_file(write: Write) -> None:
    path = write(
        '[node]\nid = "a b"\nstatedir = "x"\n'
        '[listen]\nmqtt = ":1"\nmqtts = "a:1"\n'
        '[broker]\nurl = "x"\n'
        "[limits]\nclients = 0\npending_bytes = 70000\n"
        "[extra]\n"
    )
    with pytest.raises(ConfigError) as caught:
        load_node_config(path)
    keys = [mistake.key for mistake in caught.value.mistakes]
    assert set(keys) == {
        "tls.cert",
        "tls.key",
        "node.id",
        "node.statedir",
        "listen.mqtt",
        "broker.url",
        "limits.clients",
        "limits.pending_bytes",
        "extra",
    }
    lines = [mistake.line or 0 for mistake in caught.value.mistakes]
    assert lines == sorted(lines)
    assert str(caught.value).splitlines()[2].startswith(f"{path}:2: node.id: ")


# ---- files that are no TOML ------------------------------------------------------------------


def test_syntax_errors_have_a_line(write: Write) -> None:
    found = node_mistakes(write('[node]\nid = "a"\n[broker\n'))
    assert found[""].line == 3
    assert "not valid TOML" in found[""].problem


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (f"x = 1{'0' * 5_000}", "a number of thousands of digits"),
        (f"x = {'[' * 5_000}{']' * 5_000}", "within each other, hundreds deep"),
    ],
    ids=["digits", "depth"],
)
def test_what_no_parser_takes_is_one_mistake(write: Write, text: str, problem: str) -> None:
    assert problem in node_mistakes(write(text))[""].problem


def test_a_syntax_error_at_the_end_has_the_last_line(write: Write) -> None:
    assert node_mistakes(write('[node]\nid = "a'))[""].line == 2


def test_unreadable_files(tmp_path: Path) -> None:
    assert "No such file" in node_mistakes(tmp_path / "none.toml")[""].problem
    assert "directory" in node_mistakes(tmp_path)[""].problem
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"a = \xff")
    assert "UTF-8" in node_mistakes(binary)[""].problem


@given(st.text())
def test_any_text_is_a_config_or_a_config_error(text: str) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "any.toml")
        path.write_bytes(text.encode(errors="surrogatepass"))
        for load in (load_node_config, load_fabric_config):
            with pytest.raises(ConfigError):
                load(path)


toml_values = st.recursive(
    st.one_of(st.booleans(), st.integers(-5, 300), st.sampled_from(['"a"', '"a:1"', "1.5", "nan"])),
    lambda inner: st.lists(inner, max_size=2),
    max_leaves=3,
)


@given(st.dictionaries(st.sampled_from([*NodeConfig.model_fields, "broker"]), toml_values))
def test_tables_of_any_type_never_crash_the_loader(data: dict[str, object]) -> None:
    import tempfile

    def toml(value: object) -> str:
        if isinstance(value, list):
            return f"[{', '.join(map(toml, value))}]"
        return str(value).lower() if isinstance(value, bool) else str(value)

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "any.toml")
        path.write_text("".join(f"{key} = {toml(value)}\n" for key, value in data.items()))
        for load in (load_node_config, load_fabric_config):
            with pytest.raises(ConfigError):
                load(path)


# ---- fabrics ---------------------------------------------------------------------------------


def test_a_fabric_of_two(write: Write) -> None:
    path = write(
        '[[node]]\nid = "a"\n\n[[node]]\nid = "b"\nbroker = "mqtt://h"\nmqtt = "127.0.0.1:2000"\n'
        "[limits]\nclients = 7\n"
    )
    assert is_fabric_file(path)
    config = load_fabric_config(path)
    assert [node.id for node in config.node] == ["a", "b"]
    assert config.node[0].broker == "auto"
    assert config.node[0].mqtt == Address("127.0.0.1", 0)
    assert config.node[1].broker == "mqtt://h:1883"
    assert config.limits.clients == 7


def test_fabric_mistakes(write: Write) -> None:
    path = write(
        '[[node]]\nid = "a"\nbroker = "mosquito"\nmqtt = "127.0.0.1:2000"\n'
        '[[node]]\nid = "a"\nbrokr = "auto"\nadmin = "127.0.0.1:2000"\n'
        '[[node]]\nbroker = "ftp://x"\n'
    )
    found = mistakes_of(load_fabric_config, path)
    assert {key: mistake.line for key, mistake in found.items()} == {
        "node[0].broker": 3,
        "node[1].id": 6,
        "node[1].brokr": 7,
        "node[1].admin": 8,
        "node[2].id": 9,
        "node[2].broker": 10,
    }
    assert "did you mean 'mosquitto'?" in found["node[0].broker"].problem
    assert "did you mean 'broker'?" in found["node[1].brokr"].problem
    assert "already the id of node[0]" in found["node[1].id"].problem
    assert "already taken by node[0].mqtt" in found["node[1].admin"].problem


def fabric_of(peers: dict[str, str], more: str = "") -> str:
    nodes = "".join(f'[[node]]\nid = "{id}"\npeers = {list}\n' for id, list in peers.items())
    return nodes + more


@pytest.mark.parametrize(
    ("peers", "more", "key", "words"),
    [
        ('["rihgt"]', "", "node[0].peers", ["did you mean 'right'?", "there are right;"]),
        ('["left"]', "", "node[0].peers", ["this node itself"]),
        ('["right", "right"]', "", "node[0].peers", ["named twice"]),
        ('["127.0.0.1:0"]', "", "node[0].peers", ["no port to connect to"]),
        ('["host:x"]', "", "node[0].peers", ["is not a port"]),
        ('["192.0.2.7:1"]', "", "node[0].peers", ["in between"]),
        ('"right"', "", "node[0].peers", ["must be a list", 'peers = ["edge-2"]']),
        ("[1]", "", "node[0].peers[0]", ["must be a string"]),
        (
            '["right"]',
            '[cooperation]\nalgorithm = "none"\n',
            "cooperation.algorithm",
            ["there are peers"],
        ),
        ("[]", "[link]\nqos = 4\n", "link.qos", ["0, 1 or 2"]),
    ],
)
def test_fabric_peers_that_cannot_be_meant(
    write: Write, peers: str, more: str, key: str, words: list[str]
) -> None:
    path = write(fabric_of({"left": peers, "right": "[]"}, more))
    found = mistakes_of(load_fabric_config, path)
    assert list(found) == [key]
    assert all(word in found[key].problem for word in words), found[key].problem


def test_a_fabrics_peers_may_be_nodes_of_the_file_or_elsewhere(write: Write) -> None:
    text = fabric_of({"a": '["b", "127.0.0.1:9"]', "b": '["a"]'})
    assert load_fabric_config(write(text)).node[0].peers == ("b", "127.0.0.1:9")
    private = '[link]\nsecret = "0123456789abcdef"\nprivate_network = true\n'
    text = fabric_of({"a": '["192.0.2.7:1"]'}, private)
    assert load_fabric_config(write(text)).link.secret_bytes() == b"0123456789abcdef"


def test_a_login_in_a_fabric_is_for_a_broker_that_runs_already(write: Write) -> None:
    login = 'username = "u"\npassword = "p"\n'
    assert load_fabric_config(write(f'[[node]]\nid = "a"\nbroker = "mqtt://h"\n{login}'))
    found = mistakes_of(load_fabric_config, write(f'[[node]]\nid = "a"\n{login}'))
    assert set(found) == {"node[0].username"}


@pytest.mark.parametrize(
    ("peers", "links", "groups", "rings"),
    [
        ({"a": [], "b": []}, (), (("a",), ("b",)), ()),
        ({"a": ["b"], "b": ["a"]}, (("a", "b"),), (("a", "b"),), ()),
        (
            {"a": ["b"], "b": ["c"], "c": ["a"]},
            (("a", "b"), ("b", "c"), ("c", "a")),
            (("a", "b", "c"),),
            (("c", "b", "a"),),
        ),
        (
            {"a": ["c"], "b": ["d"], "c": ["127.0.0.1:9"], "d": []},
            (("a", "c"), ("b", "d")),
            (("a", "c"), ("b", "d")),
            (),
        ),
    ],
)
def test_what_the_links_of_a_fabric_join(
    peers: dict[str, list[str]],
    links: tuple[object, ...],
    groups: tuple[object, ...],
    rings: tuple[object, ...],
) -> None:
    nodes = [{"id": node, "peers": theirs} for node, theirs in peers.items()]
    config = FabricConfig.model_validate({"node": nodes})
    shape = fabric_links(config)
    assert (shape.links, shape.groups, shape.rings) == (links, groups, rings)
    assert len(notes(config)) == len(rings) + (len(groups) > 1)
    assert len(notes(config, tree=False)) == (len(groups) > 1)


def test_the_file_of_a_fabrics_node_says_what_the_fabrics_file_says(
    write: Write, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text("0123456789abcdef")
    (tmp_path / "x.pem").write_text("PEM")
    fabric = load_fabric_config(
        write(
            '[[node]]\nid = "a"\nbroker = "mqtt://h"\nusername = "u"\npassword = "p\\u007f\\"😀"\n'
            'source = "broker"\ninterest = ["a/+", "b"]\n'
            '[link]\nqos = 2\nsecret_file = "secret"\n'
            '[link.tls]\ncert = "x.pem"\nkey = "x.pem"\nca = "x.pem"\n'
            "[cooperation]\n'odd key' = [1, 2.5, true, { x = 1979-05-27 }, inf]\n"
            '[limits]\nclients = 7\n[log]\nformat = "json"\n'
        )
    )
    listen = {"mqtt": Address("127.0.0.1", 1), "link": Address("127.0.0.1", 2)}
    peers = [Address("127.0.0.1", 3), Address("::1", 4)]
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    path = folder / "a.toml"
    url = BrokerUrl("mqtt", "h", 1883)
    path.write_text(node_file(fabric.node[0], listen, url, fabric, peers=peers))
    config = load_node_config(path)
    assert config.link == fabric.link
    assert config.cooperation == fabric.cooperation
    assert config.limits == fabric.limits
    assert config.log == fabric.log
    assert [peer.address for peer in config.peer] == peers
    assert config.listen.link == listen["link"]
    assert config.broker.source == "broker"
    assert [each.filter for each in config.interest] == ["a/+", "b"]
    assert config.broker.password_bytes() == 'p\x7f"😀'.encode()
    started = node_file(fabric.node[0], listen, url, fabric, login=("isthmus", "other"))
    path.write_text(started)
    assert load_node_config(path).broker.password_bytes() == b"other"


def test_a_fabrics_nodes_that_take_from_their_brokers_confirm_nothing(write: Write) -> None:
    text = '[[node]]\nid = "a"\nsource = "broker"\n[cooperation]\nconfirm = "fabric"\n'
    assert set(mistakes_of(load_fabric_config, write(text))) == {"node[0].source"}


def test_an_empty_fabric(write: Write) -> None:
    assert set(mistakes_of(load_fabric_config, write("node = []\n"))) == {"node"}
    assert not is_fabric_file(write(MINIMAL))


# ---- lines -----------------------------------------------------------------------------------


def test_lines_of_keys() -> None:
    lines = KeyLines(
        'top = 1\n[a]\nb.c = 2\n"quoted" = 3\ntext = """\nx = 1\n[no]\n"""\nlast = 4\n'
        "[[t]]\n[t.u]\nk = 1\n[[t]]\n[t.u]\nk = 2\n[ s . v ]\ninline = { x = 1 }\n"
    )
    assert lines.find(("top",)) == 1
    assert lines.find(("a",)) == 2
    assert lines.find(("a", "b", "c")) == 3
    assert lines.find(("a", "quoted")) == 4
    assert lines.find(("a", "last")) == 9
    assert lines.find(("t", 0, "u", "k")) == 12
    assert lines.find(("t", 1, "u", "k")) == 15
    assert lines.find(("s", "v", "inline", "x")) == 17
    assert lines.find(("x",)) is None
    assert lines.find(("no",)) is None


# ---- several brokers -------------------------------------------------------------------------

TWO = """\
[node]
id = "a"

[[broker]]
name = "main"
url = "mqtt://127.0.0.1:1884"

[[broker]]
name = "plant"
url = "mqtt://127.0.0.1:1885"
topics = ["plant/#", "+/alarm"]
"""


def test_several_brokers(write: Write) -> None:
    config = load_node_config(write(TWO))
    assert [each.name for each in config.brokers] == ["main", "plant"]
    assert config.brokers[1].topics == ("plant/#", "+/alarm")
    assert config.has_several_brokers
    assert config.broker.topics is None
    assert not load_node_config(write(MINIMAL)).has_several_brokers


def test_brokers_are_shown_as_they_are_written(write: Write) -> None:
    several = load_node_config(write(TWO)).model_dump(mode="json", by_alias=True)["broker"]
    assert [each["name"] for each in several] == ["main", "plant"]
    one = load_node_config(write(MINIMAL)).model_dump(mode="json", by_alias=True)["broker"]
    assert set(one) == {"url", "username", "password", "password_file", "tls", "source"}


@pytest.mark.parametrize(
    ("text", "key", "words"),
    [
        (TWO.replace("plant/#", "plant/#/x"), "broker[1].topics[0]", ["#", "last level"]),
        (TWO.replace("plant/#", "$share/g/plant"), "broker[1].topics[0]", ["shared"]),
        (TWO.replace('name = "plant"', 'name = "main"'), "broker[1].name", ["already the name"]),
        (TWO.replace('name = "plant"', 'name = "a b"'), "broker[1].name", ["letters, digits"]),
        (TWO.replace('name = "plant"\n', ""), "broker[1].name", ["required", "[[broker]]"]),
        (TWO.replace(":1885", ":1884"), "broker[1].url", ["broker[0] already"]),
        (TWO.replace("mqtt://127.0.0.1:1885", "embedded:"), "broker[1].url", ["alone"]),
        (TWO.replace('topics = ["plant/#", "+/alarm"]\n', ""), "broker[1].topics", ["at most"]),
        (TWO.replace('["plant/#", "+/alarm"]', "[]"), "broker[1].topics", ["must not be empty"]),
        (TWO.replace('["plant/#", "+/alarm"]', '"plant/#"'), "broker[1].topics", ["list"]),
        (TWO.replace('name = "plant"', 'nome = "plant"'), "broker[1].nome", ["'name'"]),
        (
            TWO.replace('name = "plant"', 'source = "broker"\nname = "plant"'),
            "broker[1].source",
            ["one broker", "[broker]"],
        ),
        (
            TWO.replace("[[broker]]\nname", '[[broker]]\ntopics = ["plant/+"]\nname', 1),
            "broker[1].topics",
            ['"+/alarm" and "plant/+" of broker[0] both match "plant/alarm"', "one broker"],
        ),
        (
            TWO.replace("[[broker]]\nname", '[[broker]]\ntopics = ["plant/#"]\nname', 1),
            "broker[1].topics",
            ["plant/#"],
        ),
        (MINIMAL + 'topics = ["a"]\n', "broker.topics", ["[[broker]]"]),
        (MINIMAL + 'name = "a"\n', "broker.name", ["[[broker]]"]),
        ('broker = []\n[node]\nid = "a"\n', "broker", ["at least one", "[[broker]]"]),
        ('broker = "x"\n[node]\nid = "a"\n', "broker", ["must be a table"]),
        (TWO + '[[peer]]\naddress = "127.0.0.1:1885"\n', "peer[0].address", ["is the broker"]),
        (TWO + "[listen]\nmqtt = '127.0.0.1:1885'\n", "broker[1].url", ["own listen.mqtt"]),
    ],
)
def test_mistakes_with_several_brokers(write: Write, text: str, key: str, words: list[str]) -> None:
    found = node_mistakes(write(text))
    assert key in found, found
    for word in words:
        assert word in found[key].problem


def test_a_broker_within_anothers_topics(write: Write) -> None:
    text = TWO.replace("[[broker]]\nname", '[[broker]]\ntopics = ["plant/hall/#"]\nname', 1)
    assert load_node_config(write(text.replace(', "+/alarm"', "")))


# ---- documentation ---------------------------------------------------------------------------


def _fields(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, object]]:
    for own_name, field in model.model_fields.items():
        name, inner = field.alias or own_name, field.annotation
        if get_origin(inner) is tuple and isinstance(get_args(inner)[0], type):
            inner = get_args(inner)[0]
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from _fields(inner, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", "required" if field.is_required() else field.default


def _section(heading: str) -> str:
    return REFERENCE.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


@pytest.mark.parametrize(
    ("model", "heading"), [(NodeConfig, "A node's file"), (FabricConfig, "A fabric's file")]
)
def test_every_key_is_documented_with_its_default(model: type[BaseModel], heading: str) -> None:
    rows = {
        cells[1].strip(): cells[2].strip()
        for line in _section(heading).splitlines()
        if line.startswith("| `") and len(cells := line.split("|")) > 3
    }
    expected = {}
    for key, default in _fields(model, ""):
        if heading == "A fabric's file" and not key.startswith(("node.", "discovery.")):
            continue  # the shared tables are documented once, for the node
        expected[f"`{key}`"] = _shown(default)
    assert rows == expected


def _shown(default: object) -> str:
    if default is None:
        return "not set"
    if default == "required":
        return "required"
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    if isinstance(default, (int, float)):
        return f"`{default}`"
    if default == ():
        return "`[]`"
    if default == {}:
        return "`{}`"
    return f'`"{default}"`'


# ---- where other nodes can dial this one -------------------------------------------------


@pytest.mark.parametrize(
    ("advertise", "listen", "known"),
    [
        ("", "", ""),
        ("", '[listen]\nlink = "127.0.0.1:7883"\n', "127.0.0.1:7883"),
        ("", '[listen]\nlink = "127.0.0.1:0"\n', ""),
        (
            'advertise = "edge-1.example:7"\n',
            '[listen]\nlink = "127.0.0.1:0"\n',
            "edge-1.example:7",
        ),
        ('advertise = "[2001:db8::7]:7"\n', '[listen]\nlink = "[::1]:8"\n', "[2001:db8::7]:7"),
    ],
)
def test_where_others_can_dial_a_node(
    write: Write, advertise: str, listen: str, known: str
) -> None:
    file = write(f'[node]\nid = "a"\n{advertise}[broker]\nurl = "mqtt://h:1"\n{listen}')
    assert load_node_config(file).link_address == known


@pytest.mark.parametrize(
    ("line", "listen", "words"),
    [
        ('advertise = "h:7"', "", "no effect without listen.link"),
        ('advertise = "h:0"', '[listen]\nlink = "127.0.0.1:1"\n', "no port to connect to"),
        ('advertise = "0.0.0.0:1"', '[listen]\nlink = "127.0.0.1:1"\n', "where to listen"),
    ],
)
def test_what_nobody_can_dial_is_not_advertised(
    write: Write, line: str, listen: str, words: str
) -> None:
    file = write(f'[node]\nid = "a"\n{line}\n[broker]\nurl = "mqtt://h:1"\n{listen}')
    found = node_mistakes(file)
    assert list(found) == ["node.advertise"]
    assert words in found["node.advertise"].problem


# ---- [discovery] -------------------------------------------------------------------------

PRIVATE = '[link]\nsecret = "0123456789abcdef"\nprivate_network = true\n'
WITH_SECRET = '[link]\nsecret = "0123456789abcdef"\n'


@pytest.mark.parametrize(
    ("lines", "key", "words"),
    [
        ('group = "127.0.0.1:7"', "discovery.group", ["no multicast group", "239."]),
        ('group = "edge-1.example:7"', "discovery.group", ["no multicast group"]),
        ('group = "239.1.2.3:0"', "discovery.group", ["no port", "the same"]),
        ('interface = "127.0.0.1"', "discovery.interface", ["without discovery.group"]),
        ("ttl = 3", "discovery.ttl", ["without discovery.group"]),
        ('group = "239.1.2.3:7"\nttl = 256', "discovery.ttl", ["255"]),
        ('seeds = ["h:0"]', "discovery.seeds[0]", ["no port to connect to"]),
        ("every_s = 0.01", "discovery.every_s", ["0.1"]),
        ('grup = "239.1.2.3:7"', "discovery.grup", ["did you mean 'group'?"]),
        (
            'group = "239.1.2.3:7"\ninterface = "eth0"',
            "discovery.interface",
            ["no IPv4 address", "192.0.2.7"],
        ),
        (
            'group = "[ff05::7784]:7"\ninterface = "::1"',
            "discovery.interface",
            ["is an address", '"eth0"'],
        ),
        (
            'group = "239.1.2.3:7"\n[cooperation]\nalgorithm = "none"',
            "cooperation.algorithm",
            ["discovery.group is to find some", '"tree"'],
        ),
    ],
)
def test_mistakes_in_discovery_are_named(
    write: Write, lines: str, key: str, words: list[str]
) -> None:
    found = node_mistakes(write(f"{MINIMAL}{WITH_SECRET}[discovery]\n{lines}\n"))
    assert list(found) == [key]
    assert all(word in found[key].problem for word in words), found[key].problem


@pytest.mark.parametrize(
    "line", ['group = "[ff05::7784]:7"', 'seeds = ["h:1"]', 'listen = "127.0.0.1:1"']
)
def test_discovery_needs_a_secret(write: Write, line: str) -> None:
    key = f"discovery.{line.partition(' ')[0]}"
    found = node_mistakes(write(f"{MINIMAL}[discovery]\n{line}\n"))
    assert list(found) == [key]
    assert "needs link.secret" in found[key].problem
    config = load_node_config(write(f"{MINIMAL}{WITH_SECRET}[discovery]\n{line}\n"))
    assert config.discovery.is_on


@pytest.mark.parametrize(
    ("lines", "key", "words"),
    [
        ('group = "127.0.0.1:0"', "discovery.group", ["no multicast group", "239."]),
        ("group = 239", "discovery.group", ["must be a string"]),
        ('group = "239.1.2.3:0"\nttl = -1', "discovery.ttl", ["greater than or equal to 0"]),
        ('group = "239.1.2.3:0"\ninterface = "lo"', "discovery.interface", ["no IPv4 address"]),
        ('group = "[ff05::1]:0"', "discovery.interface", ["is required", '"lo"']),
        ("every_s = 1.0", "discovery.every_s", ["without discovery.group"]),
        ('seeds = ["h:1"]', "discovery.seeds", ["unknown key", "group"]),
        (
            'group = "239.1.2.3:0"\n[cooperation]\nalgorithm = "none"',
            "cooperation.algorithm",
            ["passes no message", "remove [discovery]"],
        ),
    ],
)
def test_mistakes_in_a_fabrics_discovery_are_named(
    write: Write, lines: str, key: str, words: list[str]
) -> None:
    path = write(f'[[node]]\nid = "a"\n[discovery]\n{lines}\n')
    found = mistakes_of(load_fabric_config, path)
    assert list(found) == [key]
    assert found[key].line
    assert all(word in found[key].problem for word in words), found[key].problem


def test_a_fabrics_nodes_that_are_found_say_where_they_are(write: Write) -> None:
    group = '[discovery]\ngroup = "239.1.2.3:0"\n'
    path = write(f'[[node]]\nid = "a"\nlink = "0.0.0.0:7"\n{PRIVATE}{group}')
    found = mistakes_of(load_fabric_config, path)
    assert list(found) == ["node[0].link"]
    assert "told where to dial" in found["node[0].link"].problem


def test_the_nodes_of_a_fabric_that_find_each_other_are_one_group(write: Write) -> None:
    text = fabric_of({"a": "[]", "b": '["c"]', "c": "[]"}, '[discovery]\ngroup = "239.1.2.3:0"\n')
    config = load_fabric_config(write(text))
    assert fabric_links(config).groups == (("a", "b", "c"),)
    assert fabric_links(config).links == (("b", "c"),)
    assert notes(config) == []


def test_what_a_fabric_leaves_open_of_discovery_is_the_same_for_all_its_nodes(
    write: Write, tmp_path: Path
) -> None:
    group = '[discovery]\ngroup = "239.1.2.3:0"\n'
    file = write(f'[[node]]\nid = "a"\n{group}[cooperation]\nalgorithm = "tree"\nmerge_s = 0.1\n')
    chosen = [for_this_run(load_fabric_config(file)) for _ in range(2)]
    assert len({each.link.secret_bytes() for each in chosen}) == 2
    assert len({each.discovery.group for each in chosen}) == 2
    for index, fabric in enumerate(chosen):
        path = tmp_path / f"{index}.toml"
        listen = {"mqtt": Address("127.0.0.1", 1), "link": Address("127.0.0.1", 2)}
        url = BrokerUrl("mqtt", "h", 1883)
        path.write_text(node_file(fabric.node[0], listen, url, fabric))
        config = load_node_config(path)
        assert config.discovery == fabric.discovery.of_nodes()
        assert config.discovery.interface == "127.0.0.1"
        assert config.discovery.ttl == 0
        assert config.discovery.group is not None
        assert config.discovery.group.port
        assert config.link.secret_bytes() == fabric.link.secret_bytes()
        assert config.cooperation.options == {"merge_s": 0.1}


def test_a_secret_and_a_group_that_a_fabrics_file_gives_are_kept(write: Write) -> None:
    group = '[discovery]\ngroup = "239.1.2.3:9"\n'
    config = load_fabric_config(write(f'[[node]]\nid = "a"\n{WITH_SECRET}{group}'))
    assert for_this_run(config) == config
    alone = load_fabric_config(write('[[node]]\nid = "a"\n'))
    assert for_this_run(alone) is alone


def test_where_there_is_no_multicast_a_fabric_says_so(write: Write) -> None:
    group = '[discovery]\ngroup = "239.1.2.3:0"\ninterface = "192.0.2.7"\n'
    config = load_fabric_config(write(f'[[node]]\nid = "a"\n{group}'))
    with pytest.raises(IsthmusError, match=r"cannot find each other: 239\..*`peers`") as caught:
        for_this_run(config)
    assert str(caught.value).count("discovery.group") == 1
