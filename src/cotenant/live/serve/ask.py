"""How is a running server asked what it intends? By its HTTP door."""

from __future__ import annotations

import urllib.error
import urllib.request
from typing import Any, Final

import msgspec

from cotenant.errors import ConfigError, WorldError
from cotenant.format.serveplan import plan_of_tree

_PATIENCE_S: Final = 10.0
_ANSWER_LIMIT: Final = 16 << 20


def ask_plan(url: str) -> dict[str, Any]:
    """The answer to GET v2/cotenant/plan."""
    if not url.startswith(("http://", "https://")):
        raise ConfigError("--url", url, "write http://HOST:PORT")
    place = f"{url.rstrip('/')}/v2/cotenant/plan"
    try:
        with urllib.request.urlopen(place, timeout=_PATIENCE_S) as answer:  # noqa: S310  its scheme is looked at above
            body: bytes = answer.read(_ANSWER_LIMIT)
        told = msgspec.json.decode(body, type=dict[str, Any])
        plan_of_tree(told["plan"])
        return told
    except (OSError, ValueError, KeyError, urllib.error.URLError) as error:
        why = getattr(error, "reason", None) or error
        raise WorldError(f"no plan from {place}: {why}; is that the HTTP port of cotenant serve?") from None
