"""TLS contexts from certificates that are made for the test, tried with each other in memory."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path

import pytest

from isthmus.config.files import BrokerTls, LinkTls, Tls
from isthmus.errors import ConfigError
from isthmus.node.tls import broker_context, client_context, link_contexts
from support.certificates import Authority, Pair


class Papers:
    """Two authorities, and certificates of theirs."""

    def __init__(self, folder: Path) -> None:
        self.ours = Authority(folder, "ours")
        self.theirs = Authority(folder, "theirs")
        self.node = self.ours.issue("node")
        self.other = self.ours.issue("other")
        self.stranger = self.theirs.issue("stranger")


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    return Papers(tmp_path_factory.mktemp("papers"))


def shake_hands(
    server: ssl.SSLContext, client: ssl.SSLContext, name: str = "127.0.0.1"
) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Both ends after a handshake and a byte each way; `ssl.SSLError` if one end refuses."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        server.wrap_bio(to_server, to_client, server_side=True),
        client.wrap_bio(to_client, to_server, server_hostname=name),
    )
    waiting = set(ends)
    while waiting:
        before = (to_server.pending, to_client.pending, len(waiting))
        for end in tuple(waiting):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            waiting.discard(end)
        assert (to_server.pending, to_client.pending, len(waiting)) != before
    for end, other in (ends, ends[::-1]):
        end.write(b"!")
        assert other.read(1) == b"!"  # a refused certificate is told only now in TLS 1.3
    return ends


def a_client(papers: Papers, shows: Pair | None = None) -> ssl.SSLContext:
    """A client that believes our authority."""
    context = ssl.create_default_context(cafile=str(papers.ours.cert))
    if shows is not None:
        context.load_cert_chain(shows.cert, shows.key)
    return context


def a_broker(shows: Pair, ca: Path | None = None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(shows.cert, shows.key)
    if ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(ca)
    return context


# ---- clients -----------------------------------------------------------------------------


def test_clients_are_shown_the_nodes_certificate_and_asked_for_none(papers: Papers) -> None:
    context = client_context(Tls(cert=papers.node.cert, key=papers.node.key))
    server, _ = shake_hands(context, a_client(papers))
    assert server.getpeercert() is None


@pytest.mark.parametrize("required", [True, False])
def test_a_clients_certificate_must_be_of_the_authority_it_is_asked_for(
    papers: Papers, required: bool
) -> None:
    context = client_context(
        Tls(
            cert=papers.node.cert,
            key=papers.node.key,
            client_ca=papers.ours.cert,
            require_client_cert=required,
        )
    )
    server, _ = shake_hands(context, a_client(papers, papers.other))
    assert server.getpeercert()
    with pytest.raises(ssl.SSLError):
        shake_hands(context, a_client(papers, papers.stranger))
    if required:
        with pytest.raises(ssl.SSLError):
            shake_hands(context, a_client(papers))
    else:
        shake_hands(context, a_client(papers))


# ---- the broker --------------------------------------------------------------------------


def test_a_broker_must_have_a_certificate_of_the_authority_for_its_name(papers: Papers) -> None:
    context = broker_context(BrokerTls(ca=papers.ours.cert))
    shake_hands(a_broker(papers.node), context)
    with pytest.raises(ssl.SSLError):
        shake_hands(a_broker(papers.stranger), context)
    with pytest.raises(ssl.SSLError):
        shake_hands(a_broker(papers.node), context, "broker.example")


def test_without_an_authority_of_its_own_the_broker_must_be_known_to_the_system(
    papers: Papers,
) -> None:
    with pytest.raises(ssl.SSLError):
        shake_hands(a_broker(papers.node), broker_context(BrokerTls()))


def test_a_broker_that_is_not_to_be_verified_may_be_anybody(papers: Papers) -> None:
    context = broker_context(BrokerTls(verify=False))
    shake_hands(a_broker(papers.stranger), context, "broker.example")


def test_the_broker_is_shown_a_certificate_if_there_is_one(papers: Papers) -> None:
    broker = a_broker(papers.node, papers.ours.cert)
    shown = BrokerTls(ca=papers.ours.cert, cert=papers.other.cert, key=papers.other.key)
    server, _ = shake_hands(broker, broker_context(shown))
    assert server.getpeercert()
    with pytest.raises(ssl.SSLError):
        shake_hands(broker, broker_context(BrokerTls(ca=papers.ours.cert)))


# ---- links -------------------------------------------------------------------------------


def test_links_are_plain_without_an_authority() -> None:
    assert link_contexts(LinkTls()) is None


def links_of(papers: Papers, shows: Pair, ca: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    contexts = link_contexts(LinkTls(cert=shows.cert, key=shows.key, ca=ca))
    assert contexts is not None
    return contexts


def test_nodes_of_one_authority_link_wherever_they_are(papers: Papers) -> None:
    accepting, _ = links_of(papers, papers.node, papers.ours.cert)
    _, dialing = links_of(papers, papers.other, papers.ours.cert)
    server, client = shake_hands(accepting, dialing, "moved.example")
    assert server.getpeercert()
    assert client.getpeercert()


def test_a_node_of_another_authority_is_refused_by_either_end(papers: Papers) -> None:
    accepting, dialing = links_of(papers, papers.node, papers.ours.cert)
    stranger_accepting, stranger_dialing = links_of(papers, papers.stranger, papers.ours.cert)
    with pytest.raises(ssl.SSLError):
        shake_hands(accepting, stranger_dialing)
    with pytest.raises(ssl.SSLError):
        shake_hands(stranger_accepting, dialing)


def test_who_shows_no_certificate_is_not_linked_with(papers: Papers) -> None:
    accepting, _ = links_of(papers, papers.node, papers.ours.cert)
    with pytest.raises(ssl.SSLError):
        shake_hands(accepting, a_client(papers))


# ---- what all have in common -------------------------------------------------------------


def test_nothing_older_than_tls_1_2_is_spoken(papers: Papers) -> None:
    node = Tls(cert=papers.node.cert, key=papers.node.key)
    contexts = [client_context(node), broker_context(BrokerTls())]
    contexts += links_of(papers, papers.node, papers.ours.cert)
    assert {context.minimum_version for context in contexts} == {ssl.TLSVersion.TLSv1_2}


def test_a_file_that_is_no_certificate_is_found_at_once_and_named(
    papers: Papers, tmp_path: Path
) -> None:
    bad = tmp_path / "bad.pem"
    bad.write_text("no certificate")
    node, ca = papers.node, papers.ours.cert
    mistaken: dict[str, Callable[[], object]] = {
        "tls.cert": lambda: client_context(Tls(cert=bad, key=node.key)),
        "tls.client_ca": lambda: client_context(Tls(cert=node.cert, key=node.key, client_ca=bad)),
        "broker.tls.ca": lambda: broker_context(BrokerTls(ca=bad)),
        "broker.tls.cert": lambda: broker_context(BrokerTls(cert=bad, key=node.key)),
        "link.tls.cert": lambda: link_contexts(LinkTls(cert=bad, key=node.key, ca=ca)),
        "link.tls.ca": lambda: link_contexts(LinkTls(cert=node.cert, key=node.key, ca=bad)),
    }
    for key, make in mistaken.items():
        with pytest.raises(ConfigError) as caught:
            make()
        (mistake,) = caught.value.mistakes
        assert (mistake.file, mistake.key) == (str(bad), key)
        assert "cannot be loaded" in mistake.problem


def test_a_key_of_another_certificate_is_found_at_once(papers: Papers) -> None:
    with pytest.raises(ConfigError, match="the certificate and its key cannot be loaded"):
        client_context(Tls(cert=papers.node.cert, key=papers.other.key))


def test_a_file_that_is_gone_is_told_like_one_that_is_wrong(papers: Papers) -> None:
    gone = papers.node.cert.with_name("gone.crt")
    with pytest.raises(ConfigError, match="No such file"):
        client_context(Tls.model_construct(cert=gone, key=papers.node.key, client_ca=None))


def test_a_tls_listener_needs_a_certificate() -> None:
    with pytest.raises(ConfigError, match="a TLS listener needs a certificate"):
        client_context(Tls())
