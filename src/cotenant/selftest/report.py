"""The report of the self-test: one file that a user can send to the developers. It contains no secrets."""

from __future__ import annotations

import enum
import getpass
import os
import platform
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from cotenant import __version__
from cotenant.runner.atomic_file import replace_file

_UUID: Final = re.compile(r"(GPU|MIG)-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE)
_PATH: Final = re.compile(r"(?<![\w.])/(?:[\w.@+-]+/)+[\w.@+-]*")


class CheckStatus(enum.Enum):
    """The outcome of a check."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


class CheckResult(msgspec.Struct, frozen=True, kw_only=True):
    """One check: what was found and, unless it passed, why."""

    name: str
    about: str
    status: CheckStatus
    detail: str = ""
    data: Mapping[str, Any] = {}
    seconds: float = 0.0


class SelftestReport(msgspec.Struct, frozen=True, kw_only=True):
    """The whole report."""

    report: int = 1
    """The version of this format."""
    cotenant: str = __version__
    kernel: str
    architecture: str
    python: str
    processors: int
    is_software_gpu: bool
    gpu: Mapping[str, Any]
    """Name, memory and architecture of the device, and the version of the driver."""
    checks: list[CheckResult]
    passed: int
    failed: int
    skipped: int


def make_report(checks: list[CheckResult], gpu: Mapping[str, Any], *, is_software_gpu: bool) -> SelftestReport:
    """Return the report of these checks, with what identifies machine and user removed from all texts."""
    counts = {status: sum(check.status is status for check in checks) for status in CheckStatus}
    return SelftestReport(
        kernel=platform.release(),
        architecture=platform.machine(),
        python=platform.python_version(),
        processors=os.cpu_count() or 0,
        is_software_gpu=is_software_gpu,
        gpu=gpu,
        checks=[msgspec.structs.replace(check, detail=without_secrets(check.detail)) for check in checks],
        passed=counts[CheckStatus.PASSED],
        failed=counts[CheckStatus.FAILED],
        skipped=counts[CheckStatus.SKIPPED],
    )


def without_secrets(text: str) -> str:
    """Replace paths, device UUIDs, and the names of user and host in a text."""
    text = _UUID.sub(r"\1-UUID", text)
    text = _PATH.sub(lambda found: f"PATH/{Path(found[0]).name}", text)
    for secret, substitute in ((socket.gethostname(), "HOST"), (_user_name(), "USER")):
        if secret:
            text = re.sub(rf"\b{re.escape(secret)}\b", substitute, text)
    return text


def _user_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user id without a name
        return ""


def write_report(path: Path, report: SelftestReport) -> None:
    """Write the report; an interrupted write leaves an existing file as it was."""
    replace_file(path, msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
