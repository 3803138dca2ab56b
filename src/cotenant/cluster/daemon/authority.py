"""The controller's certificate authority: ECDSA on P-256, with the library `cryptography`."""

from __future__ import annotations

import base64
import hashlib
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, NamedTuple

from cotenant.cluster.daemon.identity import URI, Identity, write_identity, write_private
from cotenant.cluster.wire import Role
from cotenant.errors import ConfigError, PeerError, WorldError

try:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import (
        SECP256R1,
        EllipticCurvePrivateKey,
        EllipticCurvePublicKey,
        generate_private_key,
    )
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        PublicFormat,
        load_pem_private_key,
    )
    from cryptography.x509 import Certificate, CertificateSigningRequest
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ImportError:
    raise WorldError(
        'a cluster needs the library "cryptography", which is not installed; install it with: pip install '
        '"cotenant[cluster]"'
    ) from None
AUTHORITY_DAYS: Final = 3650
_EARLIER: Final = timedelta(hours=1)
"""Certificates count from so long ago: clocks of two machines differ."""
_DAY_NS: Final = 86_400 * 10**9


class SignedCertificate(NamedTuple):
    """A signed certificate and its properties."""

    certificate: str
    serial: str
    from_ns: int
    until_ns: int


def fingerprint_of(authority: str) -> str:
    """What a join token says of the authority, so that a node knows it before it trusts anybody."""
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(authority)).hexdigest()


def make_request() -> tuple[str, str]:
    """A new key and a request to sign it, both as PEM."""
    key = _new_key()
    # Whom the certificate will name is the controller's to say, so that the request itself names nobody.
    request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, SHA256())
    return _pem_of(key), _text(request)


class Authority:
    """Signs requests; its key never leaves its directory."""

    def __init__(self, key: EllipticCurvePrivateKey, certificate: Certificate) -> None:
        """Sign with this key, in the name of this certificate."""
        self._key = key
        self._certificate = certificate
        self.certificate = _text(certificate)

    def sign(self, role: Role, name: str, request: str, days: float, unix_ns: int) -> SignedCertificate:
        """A certificate of this role and name for the key in the request; raises `PeerError` for a bad one."""
        public_key = _request_of(request).public_key()
        from_, until = _moment(unix_ns) - _EARLIER, _moment(unix_ns + int(days * _DAY_NS))
        until = min(until, self._certificate.not_valid_after_utc)
        serial = x509.random_serial_number()
        who = x509.UniformResourceIdentifier(f"{URI}:{role.value}:{name}")
        usage = ExtendedKeyUsageOID.SERVER_AUTH if role is Role.CONTROLLER else ExtendedKeyUsageOID.CLIENT_AUTH
        signed = (
            x509.CertificateBuilder()
            .subject_name(_named(f"cotenant {role.value}"))
            .issuer_name(self._certificate.subject)
            .public_key(public_key)
            .serial_number(serial)
            .not_valid_before(from_)
            .not_valid_after(until)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=True)
            .add_extension(x509.SubjectAlternativeName([who]), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .sign(self._key, SHA256())
        )
        return SignedCertificate(_text(signed), serial_text(serial), _unix_ns(from_), _unix_ns(until))

    def identity(self, role: Role, name: str, controller: str, path: Path, days: float, unix_ns: int) -> Identity:
        """Make a key and a certificate here and write them down as somebody's identity."""
        key, request = make_request()
        signed = self.sign(role, name, request, days, unix_ns)
        made = Identity(role, name, controller, signed.from_ns, signed.until_ns, path, self.certificate)
        write_identity(made, key, signed.certificate)
        return made


def open_authority(folder: Path, unix_ns: int) -> Authority:
    """The authority of this directory; made there if there is none."""
    path = folder / "authority.pem"
    if not path.exists():
        _make_authority(path, unix_ns)
    try:
        text = path.read_bytes()
        key = load_pem_private_key(text, None)
        certificate = x509.load_pem_x509_certificate(text)
    except (OSError, ValueError, TypeError) as error:
        why = f"cannot be read as the cluster's authority ({error}); restore it, or begin a new cluster elsewhere"
        raise ConfigError("directories.state", str(path), why) from None
    if not isinstance(key, EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise ConfigError("directories.state", str(path), "its key and its certificate do not belong together")
    return Authority(key, certificate)


def key_of(request: str) -> str:
    """A name of the public key in a request: who asks again with the same key is the same."""
    public = _request_of(request).public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return base64.b64encode(hashlib.sha256(public).digest()).decode()


def validity_of(certificate: str) -> tuple[int, int]:
    """From when and until when a certificate counts, by the wall clock."""
    try:
        read = x509.load_pem_x509_certificate(certificate.encode())
    except ValueError as error:
        raise PeerError(f"the controller sent no certificate: {error}") from None
    return _unix_ns(read.not_valid_before_utc), _unix_ns(read.not_valid_after_utc)


def serial_text(serial: int) -> str:
    """As Python's ssl tells it: hexadecimal, of whole bytes."""
    text = f"{serial:X}"
    return text if len(text) % 2 == 0 else f"0{text}"


def _make_authority(path: Path, unix_ns: int) -> None:
    key = _new_key()
    name = _named("cotenant cluster")
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_moment(unix_ns) - _EARLIER)
        .not_valid_after(_moment(unix_ns) + timedelta(days=AUTHORITY_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, SHA256())
    )
    write_private(path, _pem_of(key) + _text(certificate))


def _new_key() -> EllipticCurvePrivateKey:
    return generate_private_key(SECP256R1())


def _request_of(text: str) -> CertificateSigningRequest:
    try:
        request = x509.load_pem_x509_csr(text.encode())
        key = request.public_key()
        is_good = request.is_signature_valid
    except Exception as error:  # noqa: BLE001  what a stranger sends may fail in more ways than the library says
        raise PeerError(f"the certificate request cannot be read: {error}") from None
    if not is_good or not isinstance(key, EllipticCurvePublicKey) or not isinstance(key.curve, SECP256R1):
        raise PeerError("a certificate request must be signed by its own key, on the curve P-256")
    return request


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _named(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _pem_of(key: EllipticCurvePrivateKey) -> str:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


def _text(thing: Certificate | CertificateSigningRequest) -> str:
    return thing.public_bytes(Encoding.PEM).decode()


def _moment(unix_ns: int) -> datetime:
    return datetime.fromtimestamp(unix_ns // 10**9, UTC)


def _unix_ns(moment: datetime) -> int:
    return int(moment.timestamp()) * 10**9
