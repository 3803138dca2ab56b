"""The device plugin (v1beta1) for clusters without DRA: places on GPUs as an extended resource.

A place is not a GPU. The kubelet does not name the pod when it allocates a place, so the container gets a grant with
which its processes ask at the node; the node knows their pod by their cgroup, and chooses the GPU when they join.
"""

from __future__ import annotations

import functools
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import grpc

from cotenant.cluster.kubernetes import names
from cotenant.cluster.kubernetes.plugin import protocol
from cotenant.cluster.kubernetes.plugin.edits import CdiDirectory, ContainerEdits, device_id
from cotenant.cluster.kubernetes.plugin.grants import LOOKUP_NAME
from cotenant.cluster.kubernetes.plugin.node_link import GpuDevice
from cotenant.cluster.kubernetes.plugin.server import Functions
from cotenant.cluster.model.cluster import GpuCondition
from cotenant.errors import CotenantError, WorldError

SOCKET: Final = "cotenant.dev-gpu.sock"
KUBELET_SOCKET: Final = "kubelet.sock"
_HEALTHY, _UNHEALTHY = "Healthy", "Unhealthy"  # k8s.io/kubelet pkg/apis/deviceplugin/v1beta1/constants.go
_REGISTER_S: Final = 10.0
_SERVICE: Final = protocol.DEVICE_PLUGIN_SERVICE


class DevicePlugin:
    """The gRPC service that the kubelet calls, and the places that it offers."""

    def __init__(
        self,
        places: int,
        edits: Callable[[Sequence[GpuDevice]], ContainerEdits],
        cdi: CdiDirectory | None,
        report: Callable[[str], None],
    ) -> None:
        """Offer this many places on each GPU; with `cdi`, the kubelet passes CDI names on, so images are checked."""
        self._places = places
        self._edits = edits
        self._cdi = cdi
        self._report = report
        self._gpus: list[GpuDevice] = []
        self._version = 0
        self._changed = threading.Condition()
        self._is_closed = False

    def functions(self) -> Functions:
        """Return the functions of the service."""
        return {
            "GetDevicePluginOptions": self._options,
            "ListAndWatch": self._list_and_watch,
            "GetPreferredAllocation": self._prefer,
            "Allocate": self._allocate,
            "PreStartContainer": self._pre_start,
        }

    def update(self, gpus: Sequence[GpuDevice]) -> None:
        """Offer places on these GPUs from now on; the kubelet is told of changes only."""
        with self._changed:
            if list(gpus) != self._gpus or not self._version:
                self._gpus = list(gpus)
                self._version += 1
                self._changed.notify_all()

    def close(self) -> None:
        """End the streams to the kubelet."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def reopen(self) -> None:
        """Serve streams again."""
        with self._changed:
            self._is_closed = False

    # -- calls of the kubelet ----------------------------------------------------------------------------------------

    def _options(self, request: object, context: object) -> Any:
        del request, context
        return options_message()

    def _list_and_watch(self, request: object, context: grpc.ServicerContext) -> Iterator[Any]:
        del request
        context.add_callback(self._wake)
        sent = 0
        while True:
            with self._changed:
                self._changed.wait_for(functools.partial(self._has_news, context, sent))
                if self._is_ended(context):
                    return
                sent, gpus = self._version, list(self._gpus)
            response = protocol.make(_SERVICE, "ListAndWatchResponse")
            for gpu in gpus:
                health = _UNHEALTHY if gpu.condition is GpuCondition.DISABLED else _HEALTHY
                for place in range(self._places):
                    response.devices.add(ID=f"{gpu.name}-{place}", health=health)
            yield response

    def _has_news(self, context: grpc.ServicerContext, sent: int) -> bool:
        return self._is_ended(context) or self._version > sent

    def _is_ended(self, context: grpc.ServicerContext) -> bool:
        return self._is_closed or not context.is_active()

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _prefer(self, request: Any, context: grpc.ServicerContext) -> Any:
        response = protocol.make(_SERVICE, "PreferredAllocationResponse")
        for one in request.container_requests:
            chosen = preferred(one.available_deviceIDs, one.must_include_deviceIDs, one.allocation_size)
            if chosen is None:
                detail = f"{one.allocation_size} of {len(one.available_deviceIDs)} available places cannot be chosen"
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, detail)
            response.container_responses.add(deviceIDs=chosen)
        return response

    def _allocate(self, request: Any, context: grpc.ServicerContext) -> Any:
        with self._changed:
            gpus = list(self._gpus)
        known = {f"{gpu.name}-{place}" for gpu in gpus for place in range(self._places)}
        response = protocol.make(_SERVICE, "AllocateResponse")
        for one in request.container_requests:
            unknown = [identity for identity in one.devices_ids if identity not in known]
            if unknown or not one.devices_ids:
                detail = f"{', '.join(unknown) or 'nothing'} is not a place of this node; see ListAndWatch"
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, detail)
            try:
                self._fill(response.container_responses.add(), gpus)
            except CotenantError as error:
                self._report(f"a place was not allocated: {error}")
                context.abort(grpc.StatusCode.UNAVAILABLE, f"cotenant: {error}")
        return response

    def _fill(self, container: Any, gpus: Sequence[GpuDevice]) -> None:
        """Add variables and mounts themselves, because not every container runtime reads CDI specs."""
        edits = self._edits(gpus)
        for name, value in edits.variables.items():
            container.envs[name] = value
        for mount in edits.mounts:
            container.mounts.add(host_path=mount.host, container_path=mount.container, read_only=mount.is_read_only)
        if any(not gpu.is_software for gpu in gpus):
            container.envs["NVIDIA_VISIBLE_DEVICES"] = "all"  # the node chooses among them later
        if self._cdi is not None:
            self._cdi.write(LOOKUP_NAME, ContainerEdits({}, (), edits.check))
            container.cdi_devices.add(name=device_id(LOOKUP_NAME))

    def _pre_start(self, request: object, context: object) -> Any:
        del request, context
        return protocol.make(_SERVICE, "PreStartContainerResponse")


def options_message() -> Any:
    """Return the options of the plugin."""
    return protocol.make(_SERVICE, "DevicePluginOptions", get_preferred_allocation_available=True)


def preferred(available: Sequence[str], included: Sequence[str], size: int) -> list[str] | None:
    """Return the places to allocate: on different GPUs, and first on those with most free places.

    None if there are not enough, or if places must be included that are not available.
    """
    if not len(included) <= size <= len(set(available)) or not set(included) <= set(available):
        return None
    chosen = list(included)
    free = Counter(_gpu_of(place) for place in available)
    for _ in range(size - len(chosen)):
        taken = Counter(_gpu_of(place) for place in chosen)
        left = [place for place in available if place not in chosen]
        chosen.append(min(left, key=lambda place: (taken[_gpu_of(place)], -free[_gpu_of(place)], _order(place))))
    return chosen


def _gpu_of(place: str) -> str:
    return place.rpartition("-")[0]


def _order(place: str) -> tuple[str, int, str]:
    gpu, _, number = place.rpartition("-")
    return gpu, int(number) if number.isdecimal() else 0, place


def register(directory: Path) -> None:
    """Register the device plugin at the kubelet; raise `WorldError` if it does not answer or refuses."""
    request = protocol.make(
        protocol.DEVICE_REGISTRATION_SERVICE,
        "RegisterRequest",
        version=protocol.DEVICE_PLUGIN_VERSION,
        endpoint=SOCKET,
        resource_name=names.EXTENDED_RESOURCE,
        options=options_message(),
    )
    with grpc.insecure_channel(f"unix:{directory / KUBELET_SOCKET}") as channel:
        call = channel.unary_unary(
            protocol.path(protocol.DEVICE_REGISTRATION_SERVICE, "Register"),
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=protocol.parser(protocol.DEVICE_REGISTRATION_SERVICE, "Empty"),
        )
        try:
            call(request, timeout=_REGISTER_S)
        except grpc.RpcError as error:
            detail = error.details() if isinstance(error, grpc.Call) else str(error)
            raise WorldError(f"the kubelet did not register {names.EXTENDED_RESOURCE}: {detail}") from None
