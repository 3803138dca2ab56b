"""Learned corrections of the speed predictor, stored in a ConfigMap so that they outlive the controller."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Final, TypeAlias

import msgspec

from cotenant.cluster.kubernetes import names
from cotenant.cluster.kubernetes.api import (
    MERGE_PATCH,
    NOT_FOUND,
    ApiClient,
    ApiError,
    ApiRequest,
    Response,
    resource_path,
)
from cotenant.cluster.kubernetes.controller.dispatcher import Dispatcher, Operation, Urgency
from cotenant.units.instant import SECOND_NS, Instant

Learned: TypeAlias = tuple[
    tuple[
        Annotated[str, msgspec.Meta(max_length=300)],
        Annotated[str, msgspec.Meta(max_length=4096)],
        Annotated[int, msgspec.Meta(ge=1, le=1_000_000)],
        Annotated[int, msgspec.Meta(ge=-3_000_000, le=3_000_000)],
    ],
    ...,
]
"""Profile, co-runners, number of measurements, and correction of a logarithm in millionths."""
_STORED_BYTES: Final = 700_000
"""A ConfigMap may have 1 MiB; JSON within JSON needs some more for quotes."""
_PERIOD_NS: Final = 60 * SECOND_NS


class _ConfigMap(msgspec.Struct):
    data: dict[str, str] = {}


def encode_learned(learned: Learned) -> str:
    """Return the most recent corrections as JSON, as many as fit."""
    lines: list[bytes] = []
    size = 2
    for entry in reversed(learned):
        line = msgspec.json.encode(entry)
        size += len(line) + 8  # four quotes are escaped in the ConfigMap
        if size > _STORED_BYTES:
            break
        lines.append(line)
    return (b"[" + b",\n".join(reversed(lines)) + b"]").decode()


def decode_learned(text: str) -> Learned:
    """Return stored corrections; raise `ValueError` if they cannot be read."""
    return msgspec.json.decode(text, type=Learned)


def load_learned(client: ApiClient, namespace: str, report: Callable[[str], None]) -> Learned:
    """Return the stored corrections; none if there are none or they cannot be read, which is reported."""
    path = resource_path("v1", "configmaps", namespace, names.PREDICTIONS_CONFIG_MAP)
    try:
        text = client.get(path, _ConfigMap).data.get(names.PREDICTIONS_KEY, "[]")
        return decode_learned(text)
    except ApiError as error:
        if error.status != NOT_FOUND:
            report(f"the learned predictions cannot be read, so none are used: {error}")
    except ValueError as error:
        report(f"the learned predictions in {names.PREDICTIONS_CONFIG_MAP} are not valid, so none are used: {error}")
    return ()


class PredictionStore:
    """Writes changed corrections once in a while."""

    def __init__(
        self, namespace: str, learned: Callable[[], Learned], dispatcher: Dispatcher, stored: Learned = ()
    ) -> None:
        self._namespace, self._learned, self._dispatcher = namespace, learned, dispatcher
        self._stored = stored
        self._due: Instant = 0

    def tick(self, now: Instant) -> None:
        """Write the corrections if they changed and a period has passed."""
        if now < self._due:
            return
        self._due = now + _PERIOD_NS
        learned = self._learned()
        if learned == self._stored:
            return
        self._stored = learned
        path = resource_path("v1", "configmaps", self._namespace, names.PREDICTIONS_CONFIG_MAP)
        body = {"data": {names.PREDICTIONS_KEY: encode_learned(learned)}}
        request = ApiRequest("PATCH", path, msgspec.json.encode(body), MERGE_PATCH)
        self._dispatcher.submit(Operation(Urgency.REPORT, request, lambda response: self._patched(response, body)))

    def _patched(self, response: Response, body: dict[str, dict[str, str]]) -> None:
        if response.status == NOT_FOUND:
            metadata = {"name": names.PREDICTIONS_CONFIG_MAP, "namespace": self._namespace}
            config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, **body}
            path = resource_path("v1", "configmaps", self._namespace)
            request = ApiRequest("POST", path, msgspec.json.encode(config_map))
            self._dispatcher.submit(Operation(Urgency.REPORT, request, lambda _: None))
