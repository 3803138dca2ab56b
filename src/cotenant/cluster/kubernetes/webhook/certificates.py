"""Certificates of the webhook: an authority of its own, a server certificate, and when each is renewed.

The authority lives ten years and the server certificate one year. Each is renewed when a third of its life is left. A
new authority is trusted together with the old one, until the old one has expired, so that a replica that still serves
the old certificate is trusted meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from cotenant.errors import ConfigError, SetupError

try:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey, generate_private_key
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ImportError:
    raise SetupError(
        'the webhook needs the library "cryptography", which is not installed; install it with: pip install '
        '"cotenant[kubernetes]"'
    ) from None

AUTHORITY_LIFE: Final = timedelta(days=3650)
SERVER_LIFE: Final = timedelta(days=365)
_EARLIER: Final = timedelta(hours=1)
"""Certificates are valid from this long ago, because the clocks of two machines differ."""
_LEFT: Final = 3
"""A certificate is renewed when one part in this many of its life is left."""
_BUNDLE_LIMIT: Final = 4
"""Authorities that are trusted at a time."""


class WebhookCertificates(NamedTuple):
    """What the Secret of the webhook contains, as PEM."""

    authorities: bytes
    """The authorities that are trusted; the first one signs."""
    authority_key: bytes
    certificate: bytes
    key: bytes


class Validity(NamedTuple):
    """What a certificate states about itself."""

    names: tuple[str, ...]
    from_ns: int
    until_ns: int


def make_certificates(
    hosts: Sequence[str], unix_ns: int, old: WebhookCertificates | None = None
) -> WebhookCertificates:
    """Return certificates for the names of the webhook's Service; a good authority of `old` is kept."""
    now = _moment(unix_ns)
    trusted = [] if old is None else [each for each in _certificates(old.authorities) if each.not_valid_after_utc > now]
    if old is None or not trusted or _is_due(trusted[0], now) or not _signs(old.authority_key, trusted[0]):
        key = generate_private_key(SECP256R1())
        trusted = [_authority(key, now), *trusted][:_BUNDLE_LIMIT]
        authority_key = _key_text(key)
    else:
        authority_key, key = old.authority_key, _load_key(old.authority_key)
    own_key = generate_private_key(SECP256R1())
    certificate = _server_certificate(own_key, hosts, key, trusted[0], now)
    bundle = b"".join(each.public_bytes(Encoding.PEM) for each in trusted)
    return WebhookCertificates(bundle, authority_key, certificate.public_bytes(Encoding.PEM), _key_text(own_key))


def needs_renewal(certificates: WebhookCertificates, hosts: Sequence[str], unix_ns: int) -> str:
    """Return why certificates must be made again; empty if they need not."""
    now = _moment(unix_ns)
    try:
        authorities = _certificates(certificates.authorities)
        certificate = x509.load_pem_x509_certificate(certificates.certificate)
        key = _load_key(certificates.key)
    except (ValueError, ConfigError) as error:
        return f"they cannot be read: {error}"
    if key.public_key() != certificate.public_key():
        return "the key does not belong to the certificate"
    if not authorities or not _is_signed_by(certificate, authorities[0]):
        return "the authority did not sign the certificate"
    if missing := [host for host in hosts if host not in _names_of(certificate)]:
        return f"the certificate does not name {missing[0]}"
    for what, each in (("authority", authorities[0]), ("certificate", certificate)):
        if each.not_valid_after_utc <= now:
            return f"the {what} expired at {each.not_valid_after_utc:%Y-%m-%d %H:%M} UTC"
        if _is_due(each, now):
            return f"the {what} expires at {each.not_valid_after_utc:%Y-%m-%d %H:%M} UTC"
    return ""


def validity_of(certificate: bytes) -> Validity:
    """Return names and times of a certificate as PEM; ValueError if it is not one."""
    read = x509.load_pem_x509_certificate(certificate)
    return Validity(_names_of(read), _unix_ns(read.not_valid_before_utc), _unix_ns(read.not_valid_after_utc))


def is_trusted_by(certificate: bytes, bundle: bytes) -> bool:
    """Return whether one of the authorities of a bundle signed a certificate."""
    try:
        read = x509.load_pem_x509_certificate(certificate)
        return any(_is_signed_by(read, authority) for authority in _certificates(bundle))
    except ValueError:
        return False


def _authority(key: EllipticCurvePrivateKey, now: datetime) -> x509.Certificate:
    # The name contains the time, so that a verifier that has two authorities tries the right one.
    name = _named(f"cotenant webhook authority {now:%Y-%m-%dT%H:%M:%SZ}")
    return (
        _builder(name, name, key, now, AUTHORITY_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .sign(key, SHA256())
    )


def _server_certificate(
    key: EllipticCurvePrivateKey,
    hosts: Sequence[str],
    authority_key: EllipticCurvePrivateKey,
    authority: x509.Certificate,
    now: datetime,
) -> x509.Certificate:
    life = min(SERVER_LIFE, authority.not_valid_after_utc - now)
    return (
        _builder(_named(hosts[0][:64]), authority.subject, key, now, life)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host) for host in hosts]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, SHA256())
    )


def _builder(
    subject: x509.Name, issuer: x509.Name, key: EllipticCurvePrivateKey, now: datetime, life: timedelta
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _EARLIER)
        .not_valid_after(now + life)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


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


def _certificates(bundle: bytes) -> list[x509.Certificate]:
    return x509.load_pem_x509_certificates(bundle) if bundle.strip() else []


def _load_key(text: bytes) -> EllipticCurvePrivateKey:
    try:
        key = load_pem_private_key(text, None)
    except (ValueError, TypeError) as error:
        raise ConfigError("key", "(key)", f"is not a key as PEM: {error}") from None
    if not isinstance(key, EllipticCurvePrivateKey):
        raise ConfigError("key", "(key)", "is not a key on an elliptic curve")
    return key


def _signs(key_text: bytes, authority: x509.Certificate) -> bool:
    """Return whether a key belongs to an authority."""
    try:
        return _load_key(key_text).public_key() == authority.public_key()
    except ConfigError:
        return False


def _is_signed_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except Exception:  # noqa: BLE001  the library names several exceptions for one answer
        return False
    return True


def _names_of(certificate: x509.Certificate) -> tuple[str, ...]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    return tuple(names.get_values_for_type(x509.DNSName))


def _is_due(certificate: x509.Certificate, now: datetime) -> bool:
    life = certificate.not_valid_after_utc - certificate.not_valid_before_utc
    return certificate.not_valid_after_utc - now < life / _LEFT


def _key_text(key: EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _moment(unix_ns: int) -> datetime:
    return datetime.fromtimestamp(unix_ns // 10**9, UTC)


def _unix_ns(moment: datetime) -> int:
    return int(moment.timestamp()) * 10**9
