"""The files of the page, as `make web` builds them into the package."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

from cotenant.web.http import Request, Response

DIRECTORY: Final = Path(__file__).parent / "static"
NOT_BUILT: Final = "the page is not built: run `make web` (needs Node 20), or install a wheel, which contains it"
_KINDS: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".json": "application/json",
    ".png": "image/png",
}
_FOREVER: Final = "public, max-age=31536000, immutable"


class StaticFiles:
    """The files, read once; names outside the directory do not exist."""

    def __init__(self, directory: Path = DIRECTORY) -> None:
        self._files: dict[str, tuple[bytes, str, str]] = {}
        for path in sorted(directory.rglob("*")) if directory.is_dir() else []:
            if path.is_file() and path.suffix in _KINDS:
                data = path.read_bytes()
                name = "/" + path.relative_to(directory).as_posix()
                self._files[name] = data, _KINDS[path.suffix], f'"{hashlib.sha256(data).hexdigest()[:16]}"'

    @property
    def is_built(self) -> bool:
        """Whether the page exists."""
        return "/index.html" in self._files

    def respond(self, request: Request) -> Response:
        """Return a file; a bundle whose name contains its hash never changes."""
        name = "/index.html" if request.path == "/" else request.path
        if name not in self._files:
            if name == "/index.html":
                return Response(503, f"cotenant: {NOT_BUILT}\n".encode(), "text/plain; charset=utf-8")
            return Response(404, b"cotenant: there is no such page\n", "text/plain; charset=utf-8")
        data, kind, tag = self._files[name]
        headers = {"ETag": tag, "Cache-Control": _FOREVER if name.startswith("/assets/") else "no-cache"}
        if request.headers.get("if-none-match") == tag:
            return Response(304, b"", kind, headers)
        return Response(200, data, kind, headers)
