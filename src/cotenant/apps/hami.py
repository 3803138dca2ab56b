"""Wires HAMi's variables into `cotenant run`: they hold where neither flag nor config says anything."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import msgspec

from cotenant.format.config import RunConfig
from cotenant.format.hami import memory_of, share_of
from cotenant.format.quantity import format_share, format_size
from cotenant.format.toml import ShareOfWhole, SizeBytes


def with_hami(
    config: RunConfig, flags: Collection[tuple[str, str]], environ: Mapping[str, str], say: Callable[[str], None]
) -> RunConfig:
    """The config with memory and share from the environment; what is taken and what is not is said."""
    memory, share = memory_of(environ), share_of(environ)
    if memory is not None:
        if config.memory or ("run", "memory") in flags:
            say(f"{memory.variable} is set too: --memory {format_size(config.memory)} holds")
        else:
            say(f"memory {format_size(memory.amount)} by {memory.variable}")
            config = msgspec.structs.replace(config, memory=SizeBytes(memory.amount))
    if share is not None:
        if config.share or ("run", "share") in flags:
            say(f"{share.variable} is set too: --share {format_share(config.share)} holds")
        else:
            say(f"share {format_share(share.amount)} by {share.variable}")
            config = msgspec.structs.replace(config, share=ShareOfWhole(share.amount))
    return config
