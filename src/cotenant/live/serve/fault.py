"""What is a client told where the server fails at its request? One sentence; its operator is told the rest."""

from __future__ import annotations

import asyncio

from cotenant.format.infer import InferError


def error_of(error: Exception) -> InferError:
    """The error to answer with: as it is where it says what is wrong with a request, else a fault of ours."""
    if isinstance(error, InferError):
        return error
    said = f"{type(error).__name__}: {str(error)[:500]}"
    asyncio.get_running_loop().call_exception_handler({"message": "a request met a fault", "exception": error})
    return InferError(f"the server failed at this request: {said}", "fault")
