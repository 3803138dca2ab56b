"""Flags of commands that estimate models."""

from __future__ import annotations

from cotenant.cli.command import group
from cotenant.cli.parser import Parser

MODELS = "Models"
"""The heading of the flags about models."""


def add_model_flags(parser: Parser, *, batch: bool = True) -> None:
    """Add the flags that say how a model runs."""
    flags = group(parser, MODELS)
    about = "GPU on which the model runs, such as v100, a100, h100, t4, l4 or p100; required for models."
    flags.add_argument("--gpu", default="", metavar="KEY", help=about)
    if batch:
        about = "Batch sizes, each a profile of its own (default 1)."
        flags.add_argument("--batch", default="1", metavar="N,...", help=about)
    flags.add_argument("--train", action="store_true", help="One training step instead of one request.")
    about = "Run operators one by one as PyTorch does, or fused as TensorRT does (default eager)."
    flags.add_argument("--mode", choices=("eager", "fused"), default="eager", help=about)
    about = "Arithmetic: fp32, tf32, fp16, bf16 or int8 (default: that of the model)."
    flags.add_argument("--precision", default="", metavar="NAME", help=about)
    flags.add_argument("--graph", action="store_true", help="Launch each request as one CUDA graph.")
    about = "Host time of one operator or launch (default 9us eager, 3us fused)."
    flags.add_argument("--host-time", default="", metavar="DURATION", help=about)
    about = "Size of a dimension of the inputs that the file leaves open, such as sequence=128; repeatable."
    flags.add_argument("--dim", action="append", default=[], metavar="NAME=SIZE", help=about)
