"""The certificate authority of a test cluster, and kubeconfig files."""

from __future__ import annotations

import base64
import ipaddress
import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey, generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from cotenant.runner.clock import unix_ns

_VALID: Final = timedelta(days=30)
_EARLIER: Final = timedelta(hours=1)


class Certificate(NamedTuple):
    """The files of a certificate and of its key."""

    certificate: Path
    key: Path


class Authority:
    """Signs the certificates of one cluster: its servers, its components and its users."""

    def __init__(self, directory: Path) -> None:
        """Create the authority's own certificate; all files are written into this directory."""
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._directory = directory
        self._key = generate_private_key(SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "cotenant-test-cluster")])
        builder = _builder(self._name, self._name, self._key, _VALID)
        certificate = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True).sign(
            self._key, SHA256()
        )
        self.files = self._write("ca", certificate, self._key)

    def issue(
        self,
        name: str,
        common_name: str,
        organizations: Sequence[str] = (),
        *,
        hosts: Sequence[str] = (),
        valid: timedelta = _VALID,
    ) -> Certificate:
        """Sign a certificate for a user of the API, or with `hosts` (names and addresses) for a server as well."""
        key = generate_private_key(SECP256R1())
        attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in organizations]
        subject = x509.Name([*attributes, x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
        uses = [ExtendedKeyUsageOID.CLIENT_AUTH, *([ExtendedKeyUsageOID.SERVER_AUTH] if hosts else [])]
        builder = _builder(subject, self._name, key, valid).add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        if hosts:
            alternatives = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
            builder = builder.add_extension(alternatives, critical=False)
        return self._write(name, builder.sign(self._key, SHA256()), key)

    def signing_key(self, name: str) -> Certificate:
        """Write a key pair without a certificate, for service-account tokens."""
        key = generate_private_key(SECP256R1())
        public = self._directory / f"{name}.pub"
        public.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
        return Certificate(public, self._write_key(name, key))

    def write_kubeconfig(self, file: Path, server: str, user: Certificate) -> Path:
        """Write a kubeconfig with embedded certificates; JSON is YAML."""
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {
                    "name": "test",
                    "cluster": {"server": server, "certificate-authority-data": _base64(self.files.certificate)},
                }
            ],
            "users": [
                {
                    "name": "user",
                    "user": {
                        "client-certificate-data": _base64(user.certificate),
                        "client-key-data": _base64(user.key),
                    },
                }
            ],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "user"}}],
            "current-context": "test",
        }
        file.touch(mode=0o600)
        file.write_text(json.dumps(document, indent=1) + "\n")
        return file

    def _write(self, name: str, certificate: x509.Certificate, key: EllipticCurvePrivateKey) -> Certificate:
        path = self._directory / f"{name}.crt"
        path.write_bytes(certificate.public_bytes(Encoding.PEM))
        return Certificate(path, self._write_key(name, key))

    def _write_key(self, name: str, key: EllipticCurvePrivateKey) -> Path:
        path = self._directory / f"{name}.key"
        path.touch(mode=0o600)
        path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        return path


def _builder(
    subject: x509.Name, issuer: x509.Name, key: EllipticCurvePrivateKey, valid: timedelta
) -> x509.CertificateBuilder:
    now = datetime.fromtimestamp(unix_ns() // 10**9, UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _EARLIER)
        .not_valid_after(now + valid)
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _base64(file: Path) -> str:
    return base64.b64encode(file.read_bytes()).decode()
