"""The messages and methods of the kubelet's gRPC protocols, declared from one table.

Field names and numbers are those of k8s.io/kubelet v0.35.4: pkg/apis/pluginregistration/v1/api.proto,
pkg/apis/dra/v1/api.proto and pkg/apis/deviceplugin/v1beta1/api.proto. Fields that this plugin neither reads nor writes
are declared too, so that a test's kubelet can send them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import Message

REGISTRATION_SERVICE: Final = "pluginregistration.Registration"
DRA_SERVICE: Final = "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"
DRA_VERSION: Final = "v1.DRAPlugin"
"""The name of the DRA service in PluginInfo.supported_versions (k8s.io/kubelet pkg/apis/dra/v1/types.go)."""
DRA_PLUGIN_TYPE: Final = "DRAPlugin"
"""The type of the plugin (k8s.io/kubelet pkg/apis/pluginregistration/v1/constants.go)."""
DEVICE_PLUGIN_SERVICE: Final = "v1beta1.DevicePlugin"
DEVICE_REGISTRATION_SERVICE: Final = "v1beta1.Registration"
DEVICE_PLUGIN_VERSION: Final = "v1beta1"

_FIELD: Final = descriptor_pb2.FieldDescriptorProto
_SCALARS: Final = {
    "string": _FIELD.TYPE_STRING,
    "bool": _FIELD.TYPE_BOOL,
    "int32": _FIELD.TYPE_INT32,
    "int64": _FIELD.TYPE_INT64,
}
_TABLES: Final[Mapping[str, Mapping[str, str]]] = {
    "pluginregistration": {
        "PluginInfo": "1 string type, 2 string name, 3 string endpoint, 4 *string supported_versions",
        "RegistrationStatus": "1 bool plugin_registered, 2 string error",
        "RegistrationStatusResponse": "",
        "InfoRequest": "",
    },
    "k8s.io.kubelet.pkg.apis.dra.v1": {
        "Claim": "1 string namespace, 2 string uid, 3 string name",
        "Device": "1 *string request_names, 2 string pool_name, 3 string device_name, 4 *string cdi_device_ids, "
        "5 ?string share_id",
        "NodePrepareResourcesRequest": "1 *Claim claims",
        "NodePrepareResourceResponse": "1 *Device devices, 2 string error",
        "NodePrepareResourcesResponse": "1 map<NodePrepareResourceResponse> claims",
        "NodeUnprepareResourcesRequest": "1 *Claim claims",
        "NodeUnprepareResourceResponse": "1 string error",
        "NodeUnprepareResourcesResponse": "1 map<NodeUnprepareResourceResponse> claims",
    },
    "v1beta1": {
        "DevicePluginOptions": "1 bool pre_start_required, 2 bool get_preferred_allocation_available",
        "RegisterRequest": "1 string version, 2 string endpoint, 3 string resource_name, 4 DevicePluginOptions options",
        "Empty": "",
        "NUMANode": "1 int64 ID",
        "TopologyInfo": "1 *NUMANode nodes",
        "Device": "1 string ID, 2 string health, 3 TopologyInfo topology",
        "ListAndWatchResponse": "1 *Device devices",
        "PreStartContainerRequest": "1 *string devices_ids",
        "PreStartContainerResponse": "",
        "ContainerPreferredAllocationRequest": "1 *string available_deviceIDs, 2 *string must_include_deviceIDs, "
        "3 int32 allocation_size",
        "PreferredAllocationRequest": "1 *ContainerPreferredAllocationRequest container_requests",
        "ContainerPreferredAllocationResponse": "1 *string deviceIDs",
        "PreferredAllocationResponse": "1 *ContainerPreferredAllocationResponse container_responses",
        "ContainerAllocateRequest": "1 *string devices_ids",
        "AllocateRequest": "1 *ContainerAllocateRequest container_requests",
        "CDIDevice": "1 string name",
        "Mount": "1 string container_path, 2 string host_path, 3 bool read_only",
        "DeviceSpec": "1 string container_path, 2 string host_path, 3 string permissions",
        "ContainerAllocateResponse": "1 map<string> envs, 2 *Mount mounts, 3 *DeviceSpec devices, "
        "4 map<string> annotations, 5 *CDIDevice cdi_devices",
        "AllocateResponse": "1 *ContainerAllocateResponse container_responses",
    },
}
"""By package and message: number, type and name of each field; `*` repeated, `?` optional, `map<T>` from text to T."""


class Method(NamedTuple):
    """A method of a service and the names of its messages."""

    name: str
    request: str
    response: str
    is_stream: bool = False


METHODS: Final[Mapping[str, tuple[Method, ...]]] = {
    REGISTRATION_SERVICE: (
        Method("GetInfo", "InfoRequest", "PluginInfo"),
        Method("NotifyRegistrationStatus", "RegistrationStatus", "RegistrationStatusResponse"),
    ),
    DRA_SERVICE: (
        Method("NodePrepareResources", "NodePrepareResourcesRequest", "NodePrepareResourcesResponse"),
        Method("NodeUnprepareResources", "NodeUnprepareResourcesRequest", "NodeUnprepareResourcesResponse"),
    ),
    DEVICE_PLUGIN_SERVICE: (
        Method("GetDevicePluginOptions", "Empty", "DevicePluginOptions"),
        Method("ListAndWatch", "Empty", "ListAndWatchResponse", is_stream=True),
        Method("GetPreferredAllocation", "PreferredAllocationRequest", "PreferredAllocationResponse"),
        Method("Allocate", "AllocateRequest", "AllocateResponse"),
        Method("PreStartContainer", "PreStartContainerRequest", "PreStartContainerResponse"),
    ),
    DEVICE_REGISTRATION_SERVICE: (Method("Register", "RegisterRequest", "Empty"),),
}


def _file_of(package: str, messages: Mapping[str, str]) -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name=f"cotenant/{package}.proto", package=package, syntax="proto3")
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        for entry in filter(None, fields.split(", ")):
            number, kind, field = entry.split(" ")
            _add_field(message, package, int(number), kind, field)
    return file


def _add_field(message: descriptor_pb2.DescriptorProto, package: str, number: int, kind: str, name: str) -> None:
    label = _FIELD.LABEL_REPEATED if kind.startswith(("*", "map<")) else _FIELD.LABEL_OPTIONAL
    field = message.field.add(name=name, number=number, label=label)
    if kind.startswith("map<"):
        # In the wire format a map is a list of entries with a key and a value.
        entry = message.nested_type.add(name="".join(part.title() for part in name.split("_")) + "Entry")
        entry.options.map_entry = True
        _add_field(entry, package, 1, "string", "key")
        _add_field(entry, package, 2, kind.removeprefix("map<").removesuffix(">"), "value")
        field.type, field.type_name = _FIELD.TYPE_MESSAGE, f".{package}.{message.name}.{entry.name}"
    elif (plain := kind.lstrip("*?")) in _SCALARS:
        field.type = _SCALARS[plain]
    else:
        field.type, field.type_name = _FIELD.TYPE_MESSAGE, f".{package}.{plain}"
    if kind.startswith("?"):
        # An optional field of proto3 is a oneof of its own.
        field.proto3_optional, field.oneof_index = True, len(message.oneof_decl)
        message.oneof_decl.add(name=f"_{name}")


def _make_classes() -> dict[str, type[Message]]:
    pool = descriptor_pool.DescriptorPool()
    for package, messages in _TABLES.items():
        pool.Add(_file_of(package, messages))
    return {
        f"{package}.{name}": message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))
        for package, messages in _TABLES.items()
        for name in messages
    }


_CLASSES: Final = _make_classes()


def make(service: str, name: str, /, **fields: Any) -> Any:
    """Return a message of the package of a service."""
    return _class_of(service, name)(**fields)


def _class_of(service: str, name: str) -> type[Message]:
    return _CLASSES[f"{service.rpartition('.')[0]}.{name}"]


def parser(service: str, name: str) -> Callable[[bytes], Any]:
    """Return the function that decodes a message of the package of a service."""
    return _class_of(service, name).FromString


def path(service: str, method: str) -> str:
    """Return the path of a method in a request."""
    return f"/{service}/{method}"
