"""TLS contexts from the configuration, towards clients and towards the broker.

TLS 1.2 is the oldest version spoken.  A certificate that cannot be loaded is a
:class:`ConfigError`, found when the node starts and not at the first connection.
"""

from __future__ import annotations

import ssl
from pathlib import Path

from isthmus.config.files import BrokerTls, LinkTls, Tls
from isthmus.errors import ConfigError, ConfigMistake

__all__ = ["broker_context", "client_context", "link_contexts"]


def client_context(tls: Tls) -> ssl.SSLContext:
    """For the listeners: our certificate, and whose clients are believed."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load_cert(context, "tls.cert", tls.cert, tls.key)
    if tls.client_ca is not None:
        _load_ca(context, "tls.client_ca", tls.client_ca)
        context.verify_mode = ssl.CERT_REQUIRED if tls.require_client_cert else ssl.CERT_OPTIONAL
    return context


def broker_context(tls: BrokerTls) -> ssl.SSLContext:
    """For the sessions with an ``mqtts://`` broker."""
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if tls.ca is not None:
        _load_ca(context, "broker.tls.ca", tls.ca)
    if tls.cert is not None:
        _load_cert(context, "broker.tls.cert", tls.cert, tls.key)
    if not tls.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def link_contexts(tls: LinkTls) -> tuple[ssl.SSLContext, ssl.SSLContext] | None:
    """For accepting and for dialing links; both ends must show a certificate of the same CA.

    Who dials a node checks the CA and not the address: nodes move, and the greeting tells ids.
    """
    if tls.ca is None:
        return None
    contexts = []
    for side in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT):
        context = ssl.SSLContext(side)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        _load_cert(context, "link.tls.cert", tls.cert, tls.key)
        _load_ca(context, "link.tls.ca", tls.ca)
        contexts.append(context)
    return contexts[0], contexts[1]


def _load_cert(context: ssl.SSLContext, key: str, cert: Path | None, private: Path | None) -> None:
    if cert is None:
        raise ConfigError([ConfigMistake("", key, "a TLS listener needs a certificate")])
    try:
        context.load_cert_chain(cert, private)
    except (OSError, ssl.SSLError) as error:
        problem = f"the certificate and its key cannot be loaded: {error}"
        raise ConfigError([ConfigMistake(str(cert), key, problem)]) from error


def _load_ca(context: ssl.SSLContext, key: str, ca: Path) -> None:
    try:
        context.load_verify_locations(ca)
    except (OSError, ssl.SSLError) as error:
        problem = f"the CA certificates cannot be loaded: {error}"
        raise ConfigError([ConfigMistake(str(ca), key, problem)]) from error
