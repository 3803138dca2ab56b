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
    place = 0
    line = 1
    while place < len(text):
        found = _TOKEN.match(text, place)
        if not found:
            raise ConfigError("config.pbtxt", text[place : place + 20], "is no protobuf text", where=f"{where}:{line}")
        if found.lastgroup and found.lastgroup != "space":
            yield _Token(found.lastgroup, found.group(), line)
        line += found.group().count("\n")
        place = found.end()


class _Reader:
    def __init__(self, tokens: list[_Token], where: str) -> None:
        self._tokens = tokens
        self._place = 0
        self._where = where

    def fields(self, closing: str, depth: int) -> dict[str, list[Any]]:
        found: dict[str, list[Any]] = {}
        while True:
            token = self._next(closing)
            if token is None or token.text == closing:
                return found
            if token.kind != "word":
                raise self._odd(token, "a field's name was expected here")
            following = self._peek()
            if following is not None and following.text == ":":
                self._place += 1
            found.setdefault(token.text, []).extend(self._values(depth))

    def _values(self, depth: int) -> list[Any]:
        token = self._next("a value")
        assert token is not None
        if depth > _DEPTH_LIMIT:
            raise self._odd(token, "is nested too deeply")
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
                self._place += 1
                text = text[:-1] + following.text[1:]
            return re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], found[1]), text[1:-1])
        if token.kind != "word":
            raise self._odd(token, "a value was expected here")
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
        return self._tokens[self._place] if self._place < len(self._tokens) else None

    def _next(self, wanted: str) -> _Token | None:
        token = self._peek()
        if token is None:
            if not wanted:
                return None
            raise ConfigError("config.pbtxt", "the end", f"{wanted} was expected before it", where=self._where)
        self._place += 1
        return token

    def _odd(self, token: _Token, remedy: str) -> ConfigError:
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
    take = _Taker(tree, "", where)
    name = take.text("name")
    platform = take.text("platform") or take.text("backend")
    take.text("backend")
    max_batch = take.number("max_batch_size")
    sides = [tuple(_tensor(take, side, one, where) for one in take.messages(side)) for side in ("input", "output")]
    batching = take.messages("dynamic_batching")
    preferred: tuple[int, ...] = ()
    wait_ns = 0
    for one in batching:
        inner = _Taker(one, "dynamic_batching.", where)
        preferred = tuple(int(size) for size in inner.values("preferred_batch_size", int))
        wait_ns = (inner.number("max_queue_delay_microseconds") or 0) * MICROSECOND_NS
        take.differences += inner.rest()
    instances = 0
    for one in take.messages("instance_group"):
        inner = _Taker(one, "instance_group.", where)
        instances += inner.number("count") or 1
        kind = inner.text("kind") or "KIND_AUTO"
        if kind == "KIND_GPU" or inner.values("gpus", int):
            take.differences.append("instance_group.kind: KIND_GPU is served by this machine's cores")
        inner.text("name")
        take.differences += inner.rest()
    for one in take.messages("model_transaction_policy"):
        if one.pop("decoupled", [False])[-1] is True:
            take.differences.append("model_transaction_policy.decoupled: an ONNX model has one answer, as here")
    if take.messages("sequence_batching"):
        remedy = "no model here keeps state between requests, so that it would answer wrongly; leave it out"
        raise ConfigError("sequence_batching", "{ ... }", remedy, where=where)
    file = take.text("default_model_filename")
    versions = _versions(take, where)
    differences = (*take.differences, *take.rest())
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


def _versions(take: _Taker, where: str) -> tuple[int, ...]:
    """Return the versions of `version_policy`; one version is served at a time, the highest."""
    for one in take.messages("version_policy"):
        inner = _Taker(one, "version_policy.", where)
        for latest in inner.messages("latest"):
            if latest.pop("num_versions", [1])[-1] != 1:
                take.differences.append("version_policy.latest: one version is served, the highest")
        if inner.messages("all"):
            take.differences.append("version_policy.all: one version is served, the highest")
        for specific in inner.messages("specific"):
            named = _Taker(specific, "version_policy.specific.", where).values("versions", int)
            if len(named) > 1:
                take.differences.append("version_policy.specific: one version is served, the highest of these")
            return tuple(named)
        take.differences += inner.rest()
    return ()


def _tensor(take: _Taker, side: str, tree: dict[str, list[Any]], where: str) -> TensorSpec:
    inner = _Taker(tree, f"{side}.", where)
    name = inner.text("name")
    kind = inner.text("data_type")
    datatype = "BYTES" if kind == "TYPE_STRING" else kind.removeprefix("TYPE_")
    if not name or datatype not in Datatype.__members__:
        raise ConfigError(f"{side}.data_type", kind, f"of {name!r}: choose TYPE_FP32 or another type", where=where)
    dims = tuple(int(one) for one in inner.values("dims", int))
    if any(one < -1 for one in dims):
        raise ConfigError(f"{side}.dims", list(dims), f"of {name!r}: dimensions are -1 or more", where=where)
    if inner.text("format") not in ("", "FORMAT_NONE"):
        take.differences.append(f"{side}.format of {name!r}: a hint that changes nothing here")
    take.differences += [f"{what} (of {name!r})" for what in inner.rest()]
    return TensorSpec(name, Datatype(datatype), dims)


class _Taker:
    """Removes fields from a tree with type checks; what remains at the end is not supported."""

    def __init__(self, tree: dict[str, list[Any]], prefix: str, where: str) -> None:
        self._tree = tree
        self._prefix = prefix
        self._where = where
        self.differences: list[str] = []

    def values(self, name: str, kind: type) -> list[Any]:
        found = self._tree.pop(name, [])
        for one in found:
            if type(one) is not kind:
                remedy = {int: "write a whole number", str: "write text or a word", dict: "write { ... }"}[kind]
                raise ConfigError(f"{self._prefix}{name}", one, remedy, where=self._where)
        return found

    def messages(self, name: str) -> list[dict[str, list[Any]]]:
        return self.values(name, dict)

    def text(self, name: str) -> str:
        found = self.values(name, str)
        return str(found[-1]) if found else ""

    def number(self, name: str) -> int | None:
        found = self.values(name, int)
        return int(found[-1]) if found else None

    def rest(self) -> list[str]:
        return [f"{self._prefix}{name}: not supported, and left out" for name in self._tree]
