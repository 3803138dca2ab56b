"""Parser of Triton's config.pbtxt: protobuf text format to a tree, and the tree to the settings that apply here.

The parser has no schema: every field is a list of values. Settings that are not supported are reported, never ignored
silently.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from cotenant.errors import ConfigError
from cotenant.serve.model.tensor import Datatype, TensorSpec
from cotenant.units.instant import MICROSECOND_NS, Duration

_TOKEN: Final = re.compile(
    r"""(?P<space>[\s,;]+|\#[^\n]*)|(?P<mark>[{}\[\]:<>])|(?P<text>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')"""
    r"""|(?P<word>[-+]?[\w.][\w.+-]*)""",
    re.ASCII,
)
_DEPTH_LIMIT: Final = 32
_SIZE_LIMIT: Final = 1 << 20
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", '"': '"', "'": "'", "\\": "\\"}
_CLOSES: Final = {"{": "}", "<": ">"}


class _Token(NamedTuple):
    kind: str
    text: str
    line: int


def parse_pbtxt(text: str, where: str) -> dict[str, list[Any]]:
    """Return every field with the list of its values, in order."""
    if len(text) > _SIZE_LIMIT:
        raise ConfigError("config.pbtxt", f"{len(text)} characters", f"{_SIZE_LIMIT} are the limit", where=where)
    reader = _Reader(list(_tokens(text, where)), where)
    return reader.fields("", 0)


def _tokens(text: str, where: str) -> Iterator[_Token]:
    position = 0
    line = 1
    while position < len(text):
        match = _TOKEN.match(text, position)
        if not match:
            raise ConfigError(
                "config.pbtxt", text[position : position + 20], "is not protobuf text format", where=f"{where}:{line}"
            )
        if match.lastgroup and match.lastgroup != "space":
            yield _Token(match.lastgroup, match.group(), line)
        line += match.group().count("\n")
        position = match.end()


class _Reader:
    def __init__(self, tokens: list[_Token], where: str) -> None:
        self._tokens = tokens
        self._position = 0
        self._where = where

    def fields(self, closing: str, depth: int) -> dict[str, list[Any]]:
        fields: dict[str, list[Any]] = {}
        while True:
            token = self._next(closing)
            if token is None or token.text == closing:
                return fields
            if token.kind != "word":
                raise self._error(token, "a field's name was expected here")
            following = self._peek()
            if following is not None and following.text == ":":
                self._position += 1
            fields.setdefault(token.text, []).extend(self._values(depth))

    def _values(self, depth: int) -> list[Any]:
        token = self._next("a value")
        assert token is not None
        if depth > _DEPTH_LIMIT:
            raise self._error(token, "is nested too deeply")
        if token.text in _CLOSES and token.kind == "mark":
            return [self.fields(_CLOSES[token.text], depth + 1)]
        if token.text == "[" and token.kind == "mark":
            listed: list[Any] = []
            while (following := self._peek()) is not None and following.text != "]":
                listed += self._values(depth + 1)
            self._next("]")
            return listed
        return [self._scalar(token)]

    def _scalar(self, token: _Token) -> Any:
        if token.kind == "text":
            text = token.text
            while (
                following := self._peek()
            ) is not None and following.kind == "text":  # adjacent strings are concatenated
                self._position += 1
                text = text[:-1] + following.text[1:]
            return re.sub(r"\\(.)", lambda match: _ESCAPES.get(match[1], match[1]), text[1:-1])
        if token.kind != "word":
            raise self._error(token, "a value was expected here")
        if token.text in ("true", "false"):
            return token.text == "true"
        try:
            return int(token.text, 0)
        except ValueError:
            pass
        try:
            return float(token.text)
        except ValueError:
            return token.text

    def _peek(self) -> _Token | None:
        return self._tokens[self._position] if self._position < len(self._tokens) else None

    def _next(self, expected: str) -> _Token | None:
        token = self._peek()
        if token is None:
            if not expected:
                return None
            raise ConfigError("config.pbtxt", "the end", f"{expected} was expected before it", where=self._where)
        self._position += 1
        return token

    def _error(self, token: _Token, remedy: str) -> ConfigError:
        return ConfigError("config.pbtxt", token.text, remedy, where=f"{self._where}:{token.line}")


class TritonConfig(NamedTuple):
    """The settings of a config.pbtxt that apply here."""

    name: str
    platform: str
    max_batch: int | None
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    """Dims as in the file, without the batch."""
    dynamic: bool
    preferred_batches: tuple[int, ...]
    wait_ns: Duration
    instances: int
    differences: tuple[str, ...]
    """Settings that are not applied as written."""
    file: str = ""
    """The model's file in a version directory; empty: the default."""
    versions: tuple[int, ...] = ()
    """The versions to choose from; the highest is served. Empty: all."""


def read_config(text: str, where: str) -> TritonConfig:
    """Parse a config.pbtxt."""
    tree = parse_pbtxt(text, where)
    taker = _FieldTaker(tree, "", where)
    name = taker.text("name")
    platform = taker.text("platform") or taker.text("backend")
    taker.text("backend")
    max_batch = taker.number("max_batch_size")
    sides = [
        tuple(_tensor(taker, side, message, where) for message in taker.messages(side)) for side in ("input", "output")
    ]
    batching = taker.messages("dynamic_batching")
    preferred: tuple[int, ...] = ()
    wait_ns = 0
    for message in batching:
        inner = _FieldTaker(message, "dynamic_batching.", where)
        preferred = tuple(int(size) for size in inner.values("preferred_batch_size", int))
        wait_ns = (inner.number("max_queue_delay_microseconds") or 0) * MICROSECOND_NS
        taker.differences += inner.unsupported()
    instances = 0
    for group in taker.messages("instance_group"):
        inner = _FieldTaker(group, "instance_group.", where)
        instances += inner.number("count") or 1
        kind = inner.text("kind") or "KIND_AUTO"
        if kind == "KIND_GPU" or inner.values("gpus", int):
            taker.differences.append("instance_group.kind: KIND_GPU is served by this machine's cores")
        inner.text("name")
        taker.differences += inner.unsupported()
    for message in taker.messages("model_transaction_policy"):
        if message.pop("decoupled", [False])[-1] is True:
            taker.differences.append("model_transaction_policy.decoupled: ONNX models have one response per request")
    if taker.messages("sequence_batching"):
        remedy = "is not supported: models keep no state between requests; remove it"
        raise ConfigError("sequence_batching", "{ ... }", remedy, where=where)
    file = taker.text("default_model_filename")
    versions = _versions(taker, where)
    differences = (*taker.differences, *taker.unsupported())
    batch = None if max_batch is None else max(max_batch, 0)
    return TritonConfig(
        name,
        platform,
        batch,
        sides[0],
        sides[1],
        bool(batching),
        preferred,
        wait_ns,
        instances,
        differences,
        file,
        versions,
    )


def _versions(taker: _FieldTaker, where: str) -> tuple[int, ...]:
    """Return the versions of `version_policy`; one version is served at a time, the highest."""
    for message in taker.messages("version_policy"):
        inner = _FieldTaker(message, "version_policy.", where)
        for latest in inner.messages("latest"):
            if latest.pop("num_versions", [1])[-1] != 1:
                taker.differences.append("version_policy.latest: one version is served, the highest")
        if inner.messages("all"):
            taker.differences.append("version_policy.all: one version is served, the highest")
        for specific in inner.messages("specific"):
            versions = _FieldTaker(specific, "version_policy.specific.", where).values("versions", int)
            if len(versions) > 1:
                taker.differences.append("version_policy.specific: one version is served, the highest of these")
            return tuple(versions)
        taker.differences += inner.unsupported()
    return ()


def _tensor(taker: _FieldTaker, side: str, tree: dict[str, list[Any]], where: str) -> TensorSpec:
    inner = _FieldTaker(tree, f"{side}.", where)
    name = inner.text("name")
    kind = inner.text("data_type")
    datatype = "BYTES" if kind == "TYPE_STRING" else kind.removeprefix("TYPE_")
    if not name or datatype not in Datatype.__members__:
        raise ConfigError(f"{side}.data_type", kind, f"of {name!r}: choose TYPE_FP32 or another type", where=where)
    dims = tuple(int(size) for size in inner.values("dims", int))
    if any(size < -1 for size in dims):
        raise ConfigError(f"{side}.dims", list(dims), f"of {name!r}: dimensions are -1 or more", where=where)
    if inner.text("format") not in ("", "FORMAT_NONE"):
        taker.differences.append(f"{side}.format of {name!r}: a hint that has no effect")
    taker.differences += [f"{difference} (of {name!r})" for difference in inner.unsupported()]
    return TensorSpec(name, Datatype(datatype), dims)


class _FieldTaker:
    """Removes fields from a tree with type checks; what remains at the end is not supported."""

    def __init__(self, tree: dict[str, list[Any]], prefix: str, where: str) -> None:
        self._tree = tree
        self._prefix = prefix
        self._where = where
        self.differences: list[str] = []

    def values(self, name: str, kind: type) -> list[Any]:
        values = self._tree.pop(name, [])
        for value in values:
            if type(value) is not kind:
                remedy = {int: "write an integer", str: "write text or a word", dict: "write { ... }"}[kind]
                raise ConfigError(f"{self._prefix}{name}", value, remedy, where=self._where)
        return values

    def messages(self, name: str) -> list[dict[str, list[Any]]]:
        return self.values(name, dict)

    def text(self, name: str) -> str:
        values = self.values(name, str)
        return str(values[-1]) if values else ""

    def number(self, name: str) -> int | None:
        values = self.values(name, int)
        return int(values[-1]) if values else None

    def unsupported(self) -> list[str]:
        return [f"{self._prefix}{name}: not supported, ignored" for name in self._tree]
