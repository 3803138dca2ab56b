"""TLS of the listeners, with a certificate that the user names."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import NamedTuple

from cotenant.errors import ConfigError


class TlsFiles(NamedTuple):
    """Paths of the certificate and the key (PEM)."""

    certificate: Path
    key: Path
    clients: Path | None = None
    """Certificate authorities of clients; if set, clients need a certificate."""


def tls_files(certificate: str, key: str, clients: str) -> TlsFiles | None:
    """Check the options; return None without TLS."""
    if not certificate:
        for flag, value in (("--tls-key", key), ("--tls-clients", clients)):
            if value:
                raise ConfigError(flag, value, "name the certificate with --tls-cert")
        return None
    if not key:
        raise ConfigError("--tls-cert", certificate, "name its key with --tls-key")
    return TlsFiles(Path(certificate), Path(key), Path(clients) if clients else None)


def tls_context(files: TlsFiles, *alpn_protocols: str) -> ssl.SSLContext:
    """Create the context of a listener with these ALPN protocols."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(list(alpn_protocols))
    try:
        context.load_cert_chain(files.certificate, files.key, _no_password)
    except (OSError, ValueError) as error:
        reason = f"it and --tls-key {files.key} are not a matching certificate and key in PEM format: {error}"
        raise ConfigError("--tls-cert", str(files.certificate), reason) from None
    if files.clients is not None:
        try:
            context.load_verify_locations(files.clients)
        except (OSError, ValueError) as error:
            reason = f"is not a file of certificates in PEM format: {error}"
            raise ConfigError("--tls-clients", str(files.clients), reason) from None
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _no_password() -> str:
    raise ValueError("the key is protected by a password")
