"""The kubelet's side of its plugin protocols: a client of DRA drivers, and the registration of device plugins."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import grpc

from cotenant.cluster.kubernetes.plugin import protocol
from cotenant.cluster.kubernetes.plugin.server import SocketServer

TIMEOUT_S = 60.0


@contextlib.contextmanager
def connected(path: Path) -> Iterator[grpc.Channel]:
    """Return a channel to a socket."""
    with grpc.insecure_channel(f"unix:{path}") as channel:
        yield channel


def call(path: Path, service: str, method: str, request: Any | bytes) -> Any:
    """Call a method on a socket; bytes are sent as they are."""
    declared = next(one for one in protocol.METHODS[service] if one.name == method)
    with connected(path) as channel:
        function = channel.unary_unary(
            protocol.path(service, method),
            request_serializer=lambda value: value if isinstance(value, bytes) else value.SerializeToString(),
            response_deserializer=protocol.parser(service, declared.response),
        )
        return function(request, timeout=TIMEOUT_S)


class Kubelet:
    """A kubelet with its directory: finds the registration socket of a driver, and calls the driver."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.device_plugins = directory / "device-plugins"
        self.registered: list[Any] = []
        """The requests with which device plugins registered."""
        self._server: SocketServer | None = None

    # -- DRA ---------------------------------------------------------------------------------------------------------

    def register_driver(self, *, error: str = "") -> Any:
        """Do what the plugin watcher does when it finds a socket; return the plugin's information."""
        [socket] = (self.directory / "plugins_registry").glob("*-reg.sock")
        service = protocol.REGISTRATION_SERVICE
        info = call(socket, service, "GetInfo", protocol.make(service, "InfoRequest"))
        status = protocol.make(service, "RegistrationStatus", plugin_registered=not error, error=error)
        call(socket, service, "NotifyRegistrationStatus", status)
        return info

    @property
    def endpoint(self) -> Path:
        """The socket of the driver."""
        return self.directory / "plugins" / "gpu.cotenant.dev" / "dra.sock"

    def prepare(self, *claims: tuple[str, str, str]) -> dict[str, Any]:
        """Prepare claims of namespace, uid and name; return the answers by uid."""
        return self._claims("NodePrepareResources", claims)

    def unprepare(self, *claims: tuple[str, str, str]) -> dict[str, Any]:
        """Revert the preparation of claims."""
        return self._claims("NodeUnprepareResources", claims)

    def _claims(self, method: str, claims: tuple[tuple[str, str, str], ...]) -> dict[str, Any]:
        request = protocol.make(protocol.DRA_SERVICE, f"{method}Request")
        for namespace, uid, name in claims:
            request.claims.add(namespace=namespace, uid=uid, name=name)
        return dict(call(self.endpoint, protocol.DRA_SERVICE, method, request).claims)

    # -- device plugins ----------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Start as a kubelet does: delete the sockets of device plugins, and wait for registrations."""
        self.stop()
        self.device_plugins.mkdir(parents=True, exist_ok=True)
        for socket in self.device_plugins.iterdir():
            socket.unlink()
        functions = {"Register": self._register}
        self._server = SocketServer(
            self.device_plugins / "kubelet.sock", {protocol.DEVICE_REGISTRATION_SERVICE: functions}
        )
        self._server.start()
        return self

    def stop(self) -> None:
        """Stop serving."""
        if self._server is not None:
            self._server.stop()
            self._server = None

    def _register(self, request: Any, context: object) -> Any:
        self.registered.append(request)
        return protocol.make(protocol.DEVICE_REGISTRATION_SERVICE, "Empty")

    def device_call(self, method: str, request: Any | bytes) -> Any:
        """Call the device plugin that registered last."""
        path = self.device_plugins / self.registered[-1].endpoint
        return call(path, protocol.DEVICE_PLUGIN_SERVICE, method, request)

    @contextlib.contextmanager
    def watch_devices(self) -> Iterator[Iterator[dict[str, str]]]:
        """Return the stream of lists of devices, each as health by id."""
        service = protocol.DEVICE_PLUGIN_SERVICE
        with connected(self.device_plugins / self.registered[-1].endpoint) as channel:
            stream = channel.unary_stream(
                protocol.path(service, "ListAndWatch"),
                request_serializer=lambda value: value.SerializeToString(),
                response_deserializer=protocol.parser(service, "ListAndWatchResponse"),
            )(protocol.make(service, "Empty"), timeout=TIMEOUT_S)
            yield ({device.ID: device.health for device in answer.devices} for answer in stream)
            stream.cancel()
