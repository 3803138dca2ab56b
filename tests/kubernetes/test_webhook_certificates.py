"""Certificates of the webhook: made, renewed before they expire, shared by replicas, and trusted by the API server."""

import base64
from pathlib import Path
from typing import Any

import pytest

from cotenant.cluster.kubernetes.webhook.certificate_source import CertificateFiles, CertificateSecret, certificates_of
from cotenant.cluster.kubernetes.webhook.certificates import (
    WebhookCertificates,
    is_trusted_by,
    make_certificates,
    needs_renewal,
    validity_of,
)
from cotenant.errors import WorldError
from tests.support.api_server import FakeApi, fake_api

HOSTS = ("cotenant-webhook.cotenant.svc", "cotenant-webhook")
DAY_NS = 86_400 * 10**9
NOW_NS = 1_800_000_000 * 10**9
SECRET = "/api/v1/namespaces/cotenant/secrets/certificate"
MUTATING = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/cotenant"
VALIDATING = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/cotenant"


def test_new_certificates_are_valid_for_the_names_of_the_service() -> None:
    made = make_certificates(HOSTS, NOW_NS)
    assert needs_renewal(made, HOSTS, NOW_NS) == ""
    assert is_trusted_by(made.certificate, made.authorities)
    validity = validity_of(made.certificate)
    assert validity.names == HOSTS
    assert validity.until_ns == NOW_NS + 365 * DAY_NS


def test_the_server_certificate_is_renewed_by_the_same_authority_before_it_expires() -> None:
    made = make_certificates(HOSTS, NOW_NS)
    assert needs_renewal(made, HOSTS, NOW_NS + 240 * DAY_NS) == ""
    due_ns = NOW_NS + 250 * DAY_NS
    assert "the certificate expires at" in needs_renewal(made, HOSTS, due_ns)
    renewed = make_certificates(HOSTS, due_ns, made)
    assert renewed.authorities == made.authorities
    assert renewed.certificate != made.certificate
    assert needs_renewal(renewed, HOSTS, due_ns) == ""


def test_a_new_authority_is_trusted_together_with_the_old_one_until_that_expires() -> None:
    made = make_certificates(HOSTS, NOW_NS)
    late_ns = NOW_NS + 3300 * DAY_NS
    renewed = make_certificates(HOSTS, late_ns, made)
    assert is_trusted_by(made.certificate, renewed.authorities)
    assert is_trusted_by(renewed.certificate, renewed.authorities)
    assert not is_trusted_by(renewed.certificate, made.authorities)
    after_ns = NOW_NS + 3700 * DAY_NS
    assert not is_trusted_by(made.certificate, make_certificates(HOSTS, after_ns, renewed).authorities)


@pytest.mark.parametrize(
    "change, reason",
    [
        ({"certificate": b"x"}, "they cannot be read"),
        ({"authorities": b""}, "the authority did not sign the certificate"),
        ({"key": make_certificates(HOSTS, NOW_NS).key}, "the key does not belong to the certificate"),
        ({"key": b""}, "they cannot be read"),
        ({"authorities": make_certificates(HOSTS, NOW_NS).authorities}, "the authority did not sign the certificate"),
    ],
)
def test_damaged_certificates_are_made_again(change: dict[str, bytes], reason: str) -> None:
    damaged = make_certificates(HOSTS, NOW_NS)._replace(**change)
    assert reason in needs_renewal(damaged, HOSTS, NOW_NS)
    assert needs_renewal(make_certificates(HOSTS, NOW_NS, damaged), HOSTS, NOW_NS) == ""


def test_another_name_of_the_service_needs_another_certificate() -> None:
    made = make_certificates(HOSTS, NOW_NS)
    assert "does not name other.svc" in needs_renewal(made, ("other.svc",), NOW_NS)
    assert "expired at" in needs_renewal(made, HOSTS, NOW_NS + 400 * DAY_NS)


def configured(api: FakeApi) -> None:
    for path in (MUTATING, VALIDATING):
        webhooks: list[Any] = [{"name": "a", "clientConfig": {"service": {}}}, {"name": "b", "clientConfig": {}}]
        api.put(path, {"metadata": {"name": "cotenant"}, "webhooks": webhooks})


def bundles(api: FakeApi, path: str) -> list[bytes]:
    return [base64.b64decode(webhook["clientConfig"]["caBundle"]) for webhook in api.objects[path]["webhooks"]]


def test_the_secret_is_made_once_and_published_in_both_configurations() -> None:
    with fake_api() as (api, client):
        configured(api)
        first = CertificateSecret(client, "cotenant", "certificate", HOSTS, "cotenant")
        second = CertificateSecret(client, "cotenant", "certificate", HOSTS, "cotenant")
        pair = first.read(NOW_NS)
        first.publish()
        assert second.read(NOW_NS) == pair
        stored = certificates_of(api.objects[SECRET])
        assert bundles(api, MUTATING) == bundles(api, VALIDATING) == [stored.authorities] * 2
        writes = len([method for method, _ in api.requests if method != "GET"])
        second.publish()
        assert len([method for method, _ in api.requests if method != "GET"]) == writes
        configured(api)  # an upgrade of the chart removes the authorities
        second.publish()
        assert bundles(api, MUTATING) == [stored.authorities] * 2


def test_a_due_certificate_is_renewed_and_published() -> None:
    with fake_api() as (api, client):
        configured(api)
        source = CertificateSecret(client, "cotenant", "certificate", HOSTS, "cotenant")
        old = source.read(NOW_NS)
        new = source.read(NOW_NS + 300 * DAY_NS)
        assert new != old
        assert certificates_of(api.objects[SECRET]).certificate == new.certificate


def test_two_replicas_agree_on_the_certificate_of_the_faster_one() -> None:
    other = make_certificates(HOSTS, NOW_NS)
    data = {
        name: base64.b64encode(content).decode()
        for name, content in zip(("ca.crt", "ca.key", "tls.crt", "tls.key"), other, strict=True)
    }
    with fake_api() as (api, client):
        api.before_write = lambda: api.put(SECRET, {"metadata": {"name": "certificate"}, "data": data})
        pair = CertificateSecret(client, "cotenant", "certificate", HOSTS, "cotenant").read(NOW_NS)
        assert pair.certificate == other.certificate
        api.put(SECRET, {"metadata": {"name": "certificate"}, "data": {"tls.crt": "%%%"}})
        api.before_write = lambda: api.put(SECRET, {"metadata": {"name": "certificate"}, "data": data})
        assert CertificateSecret(client, "cotenant", "certificate", HOSTS, "cotenant").read(NOW_NS) == pair


def test_a_missing_configuration_is_an_error_that_names_it() -> None:
    with fake_api() as (_, client):
        source = CertificateSecret(client, "cotenant", "certificate", HOSTS, "cotenant")
        source.read(NOW_NS)
        with pytest.raises(WorldError, match="mutatingwebhookconfigurations/cotenant"):
            source.publish()


def test_certificates_of_others_are_read_from_files(tmp_path: Path) -> None:
    made: WebhookCertificates = make_certificates(HOSTS, NOW_NS)
    source = CertificateFiles(tmp_path)
    with pytest.raises(WorldError, match=r"tls\.crt"):
        source.read(NOW_NS)
    (tmp_path / "tls.crt").write_bytes(made.certificate)
    (tmp_path / "tls.key").write_bytes(made.key)
    assert source.read(NOW_NS) == (made.certificate, made.key)
