"""Decode TOML into checked values with msgspec; quantities are text with units, and errors name the line."""

from __future__ import annotations

import enum
import re
import typing
from typing import Any, Final, TypeVar

import msgspec

from cotenant.errors import ConfigError
from cotenant.units.text import parse_duration, parse_share, parse_size


class DurationNs(int):
    """A duration, written as text with a unit."""


class SizeBytes(int):
    """A size, written as text with a unit."""


class ShareOfWhole(int):
    """A share in millionths, written as a percentage."""


class Count(int):
    """An integer from 0 to a million."""


_COUNT_LIMIT: Final = 1_000_000
# These are compiled when an error is explained, which few commands do.
_PATH: Final = r"`\$(?P<path>[^`]*)`"
_UNKNOWN: Final = r"(?s)unknown field `(?P<field>.*?)`(?: - at `\$|$)"
_MISSING: Final = r"missing required field `(?P<field>[^`]*)`"
_SYNTAX_POSITION: Final = r"\(at line (?P<line>\d+), column \d+\)$"
_PART: Final = r"""(?:[A-Za-z0-9_-]+|"(?:\\.|[^"\\])*"|'[^']*')"""
_DOTTED: Final = rf"{_PART}(?:\s*\.\s*{_PART})*"
_KEY: Final = rf"\s*(?P<key>{_DOTTED})\s*="
_HEADER: Final = rf"\s*(?P<open>\[{{1,2}})\s*(?P<name>{_DOTTED})\s*\]{{1,2}}\s*(?:#.*)?$"
_TEXT_OR_COMMENT: Final = (
    r"""(?s)(?P<long>\"{3}(?:\\.|[^\\])*?\"{3,5}|'{3}.*?'{3,5})|"(?:\\.|[^"\\\n])*"|'[^'\n]*'|\#[^\n]*"""
)

_ALTERNATIVES: Final = r"\^\((?P<words>[a-z|-]+)\)\\Z"
_TYPE_NAMES: Final = {
    "`int`": "an integer",
    "`int | null`": "an integer",
    "`str`": "text in quotes",
    "`object`": "a table",
    "`array`": "a list",
    "`bool`": "true or false",
    "`float`": "a number",
}


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A table of a TOML file: an unknown key is an error."""


AnySection = TypeVar("AnySection", bound=Section)


def decode_toml(text: str, section: type[AnySection], where: str) -> AnySection:
    """Return the checked value of a TOML text; `where` names the file in errors."""
    import tomllib  # noqa: PLC0415  only if there is a file

    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _syntax_error(str(error), where) from None
    except RecursionError:
        raise _syntax_error("tables or lists nested too deeply", where) from None
    except ValueError:  # from int(), which tomllib lets through
        raise _syntax_error("a number of too many digits", where) from None
    try:
        return msgspec.convert(tree, section, dec_hook=decode_quantity)
    except msgspec.ValidationError as error:
        raise _explain(str(error), text, section, tree, where) from None


def prepare(section: type[Section]) -> None:
    """Build the decoder of a section now: msgspec crashes if several threads build it at the same time."""
    msgspec.json.Decoder(section, dec_hook=decode_quantity)


def decode_quantity(kind: type, value: object) -> object:
    """Convert text with a unit to its number; the hook that msgspec calls for the types above."""
    try:
        if kind is DurationNs:
            return DurationNs(parse_duration(value))
        if kind is SizeBytes:
            return SizeBytes(parse_size(value))
        if kind is ShareOfWhole:
            return ShareOfWhole(parse_share(value))
    except ConfigError as error:
        raise ValueError(error.remedy) from None
    if kind is Count:
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _COUNT_LIMIT:
            raise ValueError(f"write an integer from 0 to {_COUNT_LIMIT}")
        return Count(value)
    raise TypeError(f"no text form for {kind}")


def explain_value(message: str, section: type[Section], field: str) -> str:
    """Return the error of one value, and the description of its field."""
    match = re.search(_PATH, message)
    reason = message[: match.start()].removesuffix(" - at ") if match else message
    # The value of a flag is always text, so the type that msgspec "got" is no information.
    remedy = _plain_message(reason.removesuffix(", got `str`"), section, [field])
    about = description_of(section, [field])
    return f"{remedy} ({about})" if about else remedy


def line_of(text: str, path: list[str | int]) -> int | None:
    """Return the line of a value, or of the nearest enclosing table; None if neither is in the text."""
    arrays: dict[tuple[str | int, ...], int] = {}
    table: list[str | int] = []
    best, best_length = None, 0
    # Lines end where TOML says they do: str.splitlines would also cut at U+2028 and others inside a comment.
    for number, line in enumerate(re.sub(_TEXT_OR_COMMENT, _without_long_text, text).split("\n"), 1):
        if header := re.match(_HEADER, line):
            *parents, last = _split_key(header["name"])
            table = []
            for name in parents:
                table.append(name)
                if tuple(table) in arrays:  # a table inside the latest entry of an array
                    table.append(arrays[tuple(table)])
            table.append(last)
            if header["open"] == "[[":
                arrays[tuple(table)] = arrays.get(tuple(table), -1) + 1
                table.append(arrays[tuple(table)])
            key_path = table
        elif key := re.match(_KEY, line):
            key_path = [*table, *_split_key(key["key"])]
        else:
            continue
        if best_length < len(key_path) <= len(path) and path[: len(key_path)] == key_path:
            best, best_length = number, len(key_path)
    return best


def _without_long_text(match: re.Match[str]) -> str:
    """Replace a multi-line string by its line breaks: its content may look like keys and tables."""
    return '""' + "\n" * match.group().count("\n") if match["long"] else match.group()


def _split_key(text: str) -> list[str]:
    """Return the parts of a dotted key, by TOML's rules for quotes and escapes."""
    import tomllib  # noqa: PLC0415  as above

    parts = []
    tree: Any = tomllib.loads(f"{text} = 0")
    while isinstance(tree, dict):
        (part,) = tree
        parts.append(part)
        tree = tree[part]
    return parts


def _syntax_error(message: str, where: str) -> ConfigError:
    position = re.search(_SYNTAX_POSITION, message)
    at = f"{where}:{position['line']}" if position else where
    detail = message[: position.start()].strip() if position else message
    return ConfigError("TOML", detail, "is not valid TOML; correct the line", where=at)


def _explain(message: str, text: str, section: type, tree: dict[str, Any], where: str) -> ConfigError:
    match = re.search(_PATH, message)
    path: list[str | int] = []
    for part in re.findall(r"[^.\[\]]+", match["path"] if match else ""):
        path.append(int(part) if part.isdecimal() else part)
    if unknown := re.search(_UNKNOWN, message):
        path.append(unknown["field"])
        known = _fields_of(_kind_at(section, path[:-1]))
        remedy = (
            f"no such field, remove it or choose one of {', '.join(known)}" if known else "no such field, remove it"
        )
    elif missing := re.search(_MISSING, message):
        path.append(missing["field"])
        remedy = "this field is required, add it"
    else:
        reason = message[: match.start()].removesuffix(" - at ") if match else message
        remedy = _plain_message(reason, section, path)
        if about := description_of(section, path):
            remedy = f"{remedy} ({about})"
    value = _value_at(tree, path)
    line = line_of(text, path)
    return ConfigError(_dotted(path), value, remedy, where=f"{where}:{line}" if line else where)


def description_of(section: Any, path: list[str | int]) -> str:
    """Return the description of the field at this path; empty where it has none."""
    about = ""
    for part in path:
        if isinstance(part, int):
            continue
        fields = {field.name: field for field in msgspec.structs.fields(section)} if _is_section(section) else {}
        if part not in fields:
            return about
        metas = [meta for meta in getattr(fields[part].type, "__metadata__", ()) if isinstance(meta, msgspec.Meta)]
        about = "".join(meta.description or "" for meta in metas)
        arguments = getattr(fields[part].type, "__args__", ())
        section = next((inner for inner in (fields[part].type, *arguments) if _is_section(inner)), None)
    return about


def _is_section(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, Section)


def _kind_at(kind: Any, path: list[str | int]) -> Any:
    """Return the declared type at a path; None where there is none."""
    for part in path:
        inner = [kind, *typing.get_args(kind)]
        if isinstance(part, int):
            kind = next((argument for argument in inner[1:] if argument is not Ellipsis), None)
        else:
            section = next((candidate for candidate in inner if _is_section(candidate)), None)
            kind = _fields_of(section).get(part)
    return kind


def _fields_of(kind: Any) -> dict[str, Any]:
    section = next((candidate for candidate in (kind, *typing.get_args(kind)) if _is_section(candidate)), None)
    return {} if section is None else {field.name: field.type for field in msgspec.structs.fields(section)}


def _words_of(kind: Any) -> list[str]:
    """Return the allowed words of a type; empty where the type is no enumeration."""
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return [str(member.value) for member in kind]
    if typing.get_origin(kind) is typing.Literal:
        return [str(argument) for argument in typing.get_args(kind)]
    for meta in getattr(kind, "__metadata__", ()):
        if match := re.fullmatch(_ALTERNATIVES, getattr(meta, "pattern", None) or ""):
            return match["words"].split("|")
    return next((words for argument in typing.get_args(kind) if (words := _words_of(argument))), [])


def _plain_message(message: str, section: type, path: list[str | int]) -> str:
    if "matching regex" in message or "Invalid enum value" in message:
        words = _words_of(_kind_at(section, path))
        return f"choose {', '.join(words[:-1])} or {words[-1]}" if len(words) > 1 else "write a value as described here"
    for type_name, plain_name in _TYPE_NAMES.items():
        message = message.replace(type_name, plain_name)
    return message[:1].lower() + message[1:]


def _value_at(tree: object, path: list[str | int]) -> object:
    for part in path:
        try:
            tree = tree[part]  # type: ignore[index]  # a table or a list, as the path requires
        except (KeyError, IndexError, TypeError):
            return None
    return tree


def _dotted(path: list[str | int]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")
