"""Reader of launch scripts, as `launch_files` writes them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from cotenant.errors import ConfigError
from cotenant.workload.kernel import KernelIdentity, WorkKind
from cotenant.workload.load import Launch

_BYTES_PER_NS: Final = {"@htod": 12.0, "@dtoh": 12.0, "@dtod": 700.0, "@memset": 700.0}
_REMEDY: Final = "write NAME BLOCKS THREADS DURATION_NS INTERVAL_NS STREAM, or @htod BYTES INTERVAL_NS STREAM"
_KERNEL_WORDS: Final = 6
_COPY_WORDS: Final = 4
_NUMBER_LIMIT: Final = 10**15


def looks_like_script(content: bytes) -> bool:
    """Return whether the content begins with a comment, as every written script does."""
    return content.startswith(b"# ")


def read_script(content: bytes, where: str) -> tuple[Launch, ...]:
    """Return the launches in host order."""
    launches = tuple(_launches(content, where))
    if not launches:
        raise ConfigError("script", where, f"it has no launch; {_REMEDY}")
    return launches


def _launches(content: bytes, where: str) -> Iterator[Launch]:
    for number, line in enumerate(content.decode("utf-8", "replace").split("\n"), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        location = f"{where}:{number}"
        copy = words[0] in _BYTES_PER_NS
        if len(words) != (_COPY_WORDS if copy else _KERNEL_WORDS):
            raise ConfigError("line", line[:60], _REMEDY, where=location)
        name, *numbers = words[0], *(_parse_number(word, location) for word in words[1:])
        if copy:
            moved_bytes, interval_ns, stream = numbers
            kernel = KernelIdentity(
                name, (1, 1, 1), (1, 1, 1), 0, WorkKind.MEMSET if name == "@memset" else WorkKind.COPY
            )
            device_ns = round(moved_bytes / _BYTES_PER_NS[name])
            yield Launch(kernel, device_ns, interval_ns, stream, moved_bytes=moved_bytes)
        else:
            blocks, threads, device_ns, interval_ns, stream = numbers
            yield Launch(KernelIdentity(name, (blocks, 1, 1), (threads, 1, 1)), device_ns, interval_ns, stream)


def _parse_number(word: str, location: str) -> int:
    if not word.isdecimal() or int(word) > _NUMBER_LIMIT:
        raise ConfigError("line", word, _REMEDY, where=location)
    return int(word)
