"""Log and trace settings in the protocol's form, and the server's log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from cotenant.serve.frontend.spans import SpanWriter
from cotenant.serve.protocol.oip.infer import InferError, quoted

_LEVELS: Final = ("log_info", "log_warning", "log_error")
_FIXED_LOG: Final[dict[str, Any]] = {"log_file": "", "log_verbose_level": 0, "log_format": "default"}
_FIXED_TRACE: Final[dict[str, Any]] = {
    "trace_rate": "1",
    "trace_count": "-1",
    "log_frequency": "0",
    "trace_file": "",
    "trace_mode": "triton",
}
_TIMESTAMPS: Final = "TIMESTAMPS"
_OFF: Final = "OFF"


class ServerLog:
    """Writes lines of three levels, each of which can be switched off."""

    def __init__(self, report: Callable[[str], None]) -> None:
        """Start with all levels on."""
        self._report = report
        self._enabled = dict.fromkeys(_LEVELS, True)

    def info(self, text: str) -> None:
        """Report a normal event."""
        self._write("log_info", text)

    def warning(self, text: str) -> None:
        """Report what the operator should know."""
        self._write("log_warning", text)

    def error(self, text: str) -> None:
        """Report a failure."""
        self._write("log_error", text)

    def _write(self, level: str, text: str) -> None:
        if self._enabled[level]:
            self._report(text)

    def settings(self) -> dict[str, Any]:
        """Return the settings of `v2/logging`."""
        return {**_FIXED_LOG, **self._enabled}

    def update(self, changes: dict[str, Any]) -> None:
        """Switch levels on or off; other settings cannot be changed."""
        for name, value in changes.items():
            if name in _LEVELS:
                if type(value) is not bool:
                    raise InferError(f"log setting {name!r} is {quoted(value)}, expected true or false")
            elif name not in _FIXED_LOG or value != _FIXED_LOG[name]:
                changeable = ", ".join(_LEVELS)
                raise InferError(f"log setting {quoted(name)} cannot be changed to {quoted(value)}, only {changeable}")
        self._enabled.update({name: value for name, value in changes.items() if name in _LEVELS})


def trace_settings(spans: SpanWriter) -> dict[str, Any]:
    """Return the settings of `v2/trace/setting`; they hold for all models."""
    return {"trace_level": [_TIMESTAMPS if spans.is_always else _OFF], **_FIXED_TRACE}


def update_trace_settings(spans: SpanWriter, changes: dict[str, Any], model: str) -> None:
    """Record requests always, or only while `cotenant trace` runs; other settings cannot be changed."""
    if model:
        raise InferError("trace settings hold for all models: use v2/trace/setting", "unsupported")
    always = spans.is_always
    for name, value in changes.items():
        given = value if isinstance(value, list) else [value]
        if name == "trace_level":
            if given not in ([_TIMESTAMPS], [_OFF]):
                raise InferError(f"trace_level is {quoted(value)}, expected TIMESTAMPS or OFF")
            always = given == [_TIMESTAMPS]
        elif value is not None and [str(item) for item in given] != [_FIXED_TRACE.get(name)]:
            raise InferError(f"trace setting {quoted(name)} cannot be changed to {quoted(value)}, only trace_level")
    if always != spans.is_always:
        spans.set_always(always=always)
