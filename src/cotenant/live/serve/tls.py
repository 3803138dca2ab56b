"""How are connections encrypted? By the TLS of Python's own ssl, with a certificate that the user names."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import NamedTuple

from cotenant.errors import ConfigError


class TlsFiles(NamedTuple):
    """Where certificate and key are, as PEM."""

    certificate: Path
    key: Path
    clients: Path | None = None
    """The authorities that sign clients; with it, a client without such a certificate is not let in."""


def tls_files(certificate: str, key: str, clients: str) -> TlsFiles | None:
    """What the flags name; None: no TLS."""
    if not certificate:
        for flag, value in (("--tls-key", key), ("--tls-clients", clients)):
            if value:
                raise ConfigError(flag, value, "name the certificate too, by --tls-cert")
        return None
    if not key:
        raise ConfigError("--tls-cert", certificate, "name its key too, by --tls-key")
    return TlsFiles(Path(certificate), Path(key), Path(clients) if clients else None)


def tls_context(files: TlsFiles, speaks: str) -> ssl.SSLContext:
    """A context for a door whose protocol is called so in ALPN."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols([speaks])
    try:
        context.load_cert_chain(files.certificate, files.key, _no_password)
    except (OSError, ValueError) as error:
        why = f"it and --tls-key {files.key} are no certificate and key in PEM that belong together: {error}"
        raise ConfigError("--tls-cert", str(files.certificate), why) from None
    if files.clients is not None:
        try:
            context.load_verify_locations(files.clients)
        except (OSError, ValueError) as error:
            why = f"is no file of certificates in PEM: {error}"
            raise ConfigError("--tls-clients", str(files.clients), why) from None
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _no_password() -> str:
    raise ValueError("the key is locked by a password")
