"""Which flags do all commands have that run models? What they run on, and where their profiles are."""

from __future__ import annotations

import argparse
from typing import Final

from cotenant.format.flags import flags_of

MODELS: Final = "folder of .onnx files, Triton repository, .onnx, .py or .replay.toml file"


def add_runtime_flags(parser: argparse.ArgumentParser) -> None:
    """For `serve` and what is beside it."""
    parser.add_argument("--cores", type=int, default=0, help="cores that models run on (default 0: all)")
    parser.add_argument(
        "--runtime", default="onnx-cpu", help="what models run on: onnx-cpu (default), onnx-cuda, replay"
    )
    parser.add_argument("--gpu", default="", help="soft:N for a software GPU, N for a real one")
    about = "whether workers on a GPU are tenants of the node: auto (default: if it runs), yes or no"
    parser.add_argument("--tenants", default="auto", help=about)
    parser.add_argument("--workers", type=int, default=44, help="processes on a GPU at once (default 44)")
    about = "after which a run on a GPU is given up (default 30s)"
    parser.add_argument("--run-limit", default="30s", metavar="TIME", help=about)
    parser.add_argument("--config", default="", metavar="FILE", help="config file instead of the usual one")
    for flag in flags_of("directories"):
        option = f"--directories-{flag.option[2:]}"
        parser.add_argument(option, dest=".".join(flag.field), default=None, metavar="DIR", help=flag.about)
    parser.add_argument("--profiles", default="", metavar="DIR", help="folder of profiles instead of the usual one")
