"""gRPC services on Unix sockets, and the registration of the DRA driver at the kubelet."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import grpc

from cotenant.cluster.kubernetes import names
from cotenant.cluster.kubernetes.plugin import protocol
from cotenant.errors import ConfigError, WorldError

_THREADS: Final = 8
_STOP_S: Final = 2.0
_PATH_LIMIT: Final = 107  # sun_path of a Unix socket address, less its terminating zero

Functions = Mapping[str, Callable[[Any, Any], Any]]
"""The functions of a service, by method."""


class SocketServer:
    """Serves services on a Unix socket, which others may delete at any time."""

    def __init__(self, path: Path, services: Mapping[str, Functions]) -> None:
        """Serve these services, by name, once `start` is called."""
        if len(os.fsencode(path)) > _PATH_LIMIT:
            remedy = f"is too long for a socket; choose a directory with a path of at most {_PATH_LIMIT - 30} bytes"
            raise ConfigError("--kubelet-dir", str(path), remedy)
        self.path = path
        self._services = services
        self._server: grpc.Server | None = None
        self._inode = 0

    def start(self) -> None:
        """Listen; a socket of an earlier process is replaced."""
        self.stop()
        server = grpc.server(ThreadPoolExecutor(_THREADS, thread_name_prefix="cotenant-grpc"))
        server.add_generic_rpc_handlers([_handler(name, functions) for name, functions in self._services.items()])
        try:
            self.path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
            self.path.unlink(missing_ok=True)
            server.add_insecure_port(f"unix:{self.path}")
            server.start()
            self._inode = self.path.stat().st_ino
        except (OSError, RuntimeError) as error:
            detail = getattr(error, "strerror", None) or str(error)
            raise WorldError(f"cannot serve on {self.path}: {detail}; repair its directory") from None
        self._server = server

    def is_present(self) -> bool:
        """Return whether the socket of this server still exists; a starting kubelet may delete it."""
        try:
            return self._server is not None and self.path.stat().st_ino == self._inode
        except OSError:
            return False

    def stop(self) -> None:
        """Finish running calls and stop listening."""
        if self._server is not None:
            self._server.stop(_STOP_S).wait()
            self._server = None


def _handler(service: str, functions: Functions) -> grpc.GenericRpcHandler:
    handlers = {}
    for method in protocol.METHODS[service]:
        if method.name not in functions:
            continue
        make = grpc.unary_stream_rpc_method_handler if method.is_stream else grpc.unary_unary_rpc_method_handler
        handlers[method.name] = make(
            functions[method.name],
            request_deserializer=protocol.parser(service, method.request),
            response_serializer=lambda message: message.SerializeToString(),
        )
    return grpc.method_handlers_generic_handler(service, handlers)


class Registration:
    """Answers the kubelet's plugin watcher, which finds the socket of this service by itself, after each start."""

    def __init__(self, endpoint: Path, on_registered: Callable[[], None], report: Callable[[str], None]) -> None:
        """`endpoint` is the socket of the driver; `on_registered` is called each time the kubelet has accepted it."""
        self._endpoint = endpoint
        self._on_registered = on_registered
        self._report = report

    def functions(self) -> Functions:
        """Return the functions of the service."""
        return {"GetInfo": self._info, "NotifyRegistrationStatus": self._notified}

    def _info(self, request: object, context: object) -> Any:
        del request, context
        return protocol.make(
            protocol.REGISTRATION_SERVICE,
            "PluginInfo",
            type=protocol.DRA_PLUGIN_TYPE,
            name=names.DRIVER,
            endpoint=str(self._endpoint),
            supported_versions=[protocol.DRA_VERSION],
        )

    def _notified(self, request: Any, context: object) -> Any:
        del context
        if request.plugin_registered:
            self._report(f"the kubelet registered the driver {names.DRIVER}")
            self._on_registered()
        else:
            self._report(f"the kubelet refused the driver {names.DRIVER}: {request.error or 'it gave no reason'}")
        return protocol.make(protocol.REGISTRATION_SERVICE, "RegistrationStatusResponse")
