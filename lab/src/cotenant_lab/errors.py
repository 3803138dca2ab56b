"""Exceptions of the lab."""

from __future__ import annotations

from cotenant.errors import CotenantError


class RunFailedError(CotenantError):
    """A run of a bench or study failed: a process ended early, did not become ready, or measured nothing."""

    exit_code = 1
