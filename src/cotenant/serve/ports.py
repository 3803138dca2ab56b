"""Ports of the inference server: the interfaces through which its actions take effect, live or simulated."""

from __future__ import annotations

from typing import Protocol

from cotenant.serve.model.event import RejectRequest, Run


class Runtime(Protocol):
    """Runs models. It reports the end of each run once, as a `RunFinished`, whether the run succeeded or failed."""

    def start(self, run: Run) -> None:
        """Start a run; its requests are answered when it ends."""
        ...

    def release(self, model: str, key: int) -> None:
        """Release one loaded instance of a model; no run and no queued request refers to it."""
        ...


class Responder(Protocol):
    """Sends rejections to clients. A request that was cancelled gets no response."""

    def reject(self, refusal: RejectRequest) -> None:
        """Send a rejection to the client."""
        ...

    def drained(self) -> None:
        """Report that every admitted request was answered."""
        ...
