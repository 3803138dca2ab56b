"""`cotenant serve profile`: how long do models' runs take?"""

from __future__ import annotations

import argparse
from typing import Any

from rich.console import Console

from cotenant.cli.command import add_command, find, load, print_json, say
from cotenant.cli.serve_flags import MODELS, add_runtime_flags


def add_commands(commands: Any) -> None:
    """`cotenant serve profile MODELS`."""
    about = "Measure how long models' runs take, by rows and cores."
    profile = add_command(commands, "serve profile", about, _profile, json=True)
    profile.add_argument("models", nargs="+", metavar="MODELS", help=MODELS)
    profile.add_argument("--budget", default="20s", metavar="TIME", help="for each model (default 20s)")
    shape = "of one row, for inputs with free dimensions (default: 64 for each); may be repeated"
    profile.add_argument("--shape", action="append", default=[], metavar="[MODEL=]INPUT:DIM,DIM", help=shape)
    profile.add_argument("--again", action="store_true", help="measure also what has a profile")
    profile.add_argument("--plot", default="", metavar="FILE", help="also draw the curves, into a .svg or .html file")
    add_runtime_flags(profile)


def _profile(options: argparse.Namespace) -> int:
    from cotenant.apps.needs import need_packages

    need_packages("serve", "pip install 'cotenant[serve]'", "google.protobuf", "onnxruntime")
    from cotenant.apps.serve_profile import ProfileArguments, profile_models
    from cotenant.apps.show_serve_profile import measuring, profiles_json, show_profiles

    given = {name: getattr(options, name) for name in ProfileArguments.__struct_fields__}
    given |= {"models": tuple(options.models), "shape": tuple(options.shape)}
    draw = None
    if options.plot:
        from cotenant.apps.serve_profile_plots import plotter

        draw = plotter(options.plot)
    with measuring(Console(stderr=True), say) as progress:
        outcomes = profile_models(ProfileArguments(**given), find(options)[1], load(options)[1], say, progress)
    if draw is not None:
        draw(outcomes)
        say(f"written: {options.plot}")
    if options.json:
        print_json(profiles_json(outcomes))
    else:
        show_profiles(Console(), outcomes)
    return 0 if any(one.profiled is not None for one in outcomes) else 1
