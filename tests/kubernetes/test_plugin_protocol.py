"""The messages of the kubelet's protocols have the field numbers of its published definitions."""

import pytest

from cotenant.cluster.kubernetes.plugin import protocol


def test_registration_message_has_the_published_field_numbers() -> None:
    info = protocol.make(
        protocol.REGISTRATION_SERVICE, "PluginInfo", type="t", name="n", endpoint="e", supported_versions=["a", "b"]
    )
    assert info.SerializeToString() == b"\x0a\x01t\x12\x01n\x1a\x01e\x22\x01a\x22\x01b"


def test_answer_to_prepare_has_the_published_field_numbers() -> None:
    answer = protocol.make(protocol.DRA_SERVICE, "NodePrepareResourcesResponse")
    answer.claims["u"].devices.add(
        request_names=["r"], pool_name="p", device_name="d", cdi_device_ids=["c"], share_id="s"
    )
    device = b"\x0a\x01r\x12\x01p\x1a\x01d\x22\x01c\x2a\x01s"
    value = b"\x0a" + bytes([len(device)]) + device
    entry = b"\x0a\x01u\x12" + bytes([len(value)]) + value
    assert answer.SerializeToString() == b"\x0a" + bytes([len(entry)]) + entry


def test_share_id_is_optional() -> None:
    device = protocol.make(protocol.DRA_SERVICE, "Device")
    assert not device.HasField("share_id")
    device.share_id = ""
    assert device.HasField("share_id")
    assert device.SerializeToString() == b"\x2a\x00"


def test_allocation_has_the_published_field_numbers() -> None:
    answer = protocol.make(protocol.DEVICE_PLUGIN_SERVICE, "ContainerAllocateResponse", envs={"k": "v"})
    answer.mounts.add(container_path="c", host_path="h", read_only=True)
    answer.cdi_devices.add(name="n")
    variable, mount, name = b"\x0a\x01k\x12\x01v", b"\x0a\x01c\x12\x01h\x18\x01", b"\x0a\x01n"
    assert answer.SerializeToString() == b"\x0a\x06" + variable + b"\x12\x08" + mount + b"\x2a\x03" + name


def test_claim_is_read_from_bytes_of_the_kubelet() -> None:
    data = b"\x0a\x09\x0a\x01n\x12\x01u\x1a\x01c"
    request = protocol.parser(protocol.DRA_SERVICE, "NodePrepareResourcesRequest")(data)
    [claim] = request.claims
    assert (claim.namespace, claim.uid, claim.name) == ("n", "u", "c")


@pytest.mark.parametrize("service", protocol.METHODS)
def test_every_method_has_its_messages(service: str) -> None:
    for method in protocol.METHODS[service]:
        assert protocol.make(service, method.request).SerializeToString() == b""
        assert protocol.parser(service, method.response)(b"") == protocol.make(service, method.response)
