"""The Helm chart, rendered by helm, and the types of the Kubernetes API that its objects must have."""

import importlib
import json
import subprocess
import types
import typing
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import yaml

from cotenant_lab.kubernetes.cluster import helm_program

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "chart"
KUBERNETES = "1.35.0"
OTHER_KINDS = {"PodMonitor", "Certificate", "Issuer", "ResourceFlavor", "ClusterQueue", "LocalQueue"}
"""Kinds of other projects, whose types are not those of Kubernetes."""


def helm(*words: str) -> subprocess.CompletedProcess[str]:
    """Run helm."""
    return subprocess.run([helm_program(), *words], capture_output=True, text=True, check=False)


def template(values: dict[str, Any], version: str = KUBERNETES, namespace: str = "cotenant") -> Any:
    """Return the completed process of `helm template` with these values."""
    flags = [word for name, value in values.items() for word in ("--set-json", f"{name}={json.dumps(value)}")]
    return helm("template", "cotenant", str(CHART), "--kube-version", version, "--namespace", namespace, *flags)


@cache
def _rendered(values: str, version: str, namespace: str) -> str:
    done = template(json.loads(values), version, namespace)
    assert done.returncode == 0, done.stderr
    text: str = done.stdout
    return text


def render(values: dict[str, Any] | None = None, version: str = KUBERNETES, namespace: str = "cotenant") -> list[Any]:
    """Return the objects that the chart creates."""
    text = _rendered(json.dumps(values or {}), version, namespace)
    return [document for document in yaml.safe_load_all(text) if document is not None]


def find(objects: list[Any], kind: str, name: str) -> Any:
    """Return the one object of a kind and a name."""
    [found] = [each for each in objects if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return found


def pod_specs(objects: list[Any]) -> Iterator[Any]:
    """Return the pod specifications of all workloads."""
    for each in objects:
        if "template" in each.get("spec", {}) and "spec" in each["spec"]["template"]:
            yield each["spec"]["template"]["spec"]


def type_problems(value: dict[str, Any]) -> list[str]:
    """Return where an object does not have the type that the Kubernetes API gives its kind."""
    if value["kind"] in OTHER_KINDS:
        return []
    group, _, version = value["apiVersion"].rpartition("/")
    module = importlib.import_module(f"lightkube.models.{group.partition('.')[0] or 'core'}_{version}")
    return list(_problems(value, getattr(module, value["kind"]), value["kind"]))


def _problems(value: Any, kind: Any, path: str) -> Iterator[str]:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        inner = [each for each in arguments if each is not type(None)]
        if len(inner) == 1:
            yield from _problems(value, inner[0], path)
    elif origin is list:
        if not isinstance(value, list):
            yield f"{path} must be a list"
            return
        for index, item in enumerate(value):
            yield from _problems(item, arguments[0], f"{path}[{index}]")
    elif origin is dict:
        if not isinstance(value, dict):
            yield f"{path} must be an object"
            return
        for key, item in value.items():
            yield from _problems(item, arguments[1], f"{path}[{key}]")
    elif isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        yield from _struct_problems(value, kind, path)
    elif kind in (str, int, bool) and (not isinstance(value, kind) or (kind is int and isinstance(value, bool))):
        yield f"{path} must be {kind.__name__}, not {value!r}"


def _struct_problems(value: Any, kind: type[msgspec.Struct], path: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{path} must be an object"
        return
    fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
    hints = typing.get_type_hints(kind)
    for key, item in value.items():
        if key not in fields:
            yield f"{path}.{key} is unknown"
        elif item is not None:
            yield from _problems(item, hints[fields[key].name], f"{path}.{key}")
    for key, field in fields.items():
        if field.required and key not in value:
            yield f"{path}.{key} is missing"
