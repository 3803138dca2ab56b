"""`cotenant config init`: a config file in which every field is explained."""

from __future__ import annotations

from cotenant.cli.flags import SECTION_TITLES, flags_of, option_of
from cotenant.node.config.file import Config, plain, toml_value

_HEAD = """\
# Configuration of cotenant. Every value below is the default; remove the # of a line to change it.
# A flag of the same name overrides it. `cotenant config check` checks this file, `cotenant config show` shows what
# is in force.
"""


def commented_config() -> str:
    """Return a config file with every field, its description and its default as a comment."""
    config, lines = Config(), [_HEAD]
    for section, title in SECTION_TITLES.items():
        lines += [f"# {title}", f"[{section}]"]
        for flag in flags_of(section):
            field = flag.field[1]
            value = plain(getattr(getattr(config, section), field))
            shown = '""' if value is None else toml_value(value)
            lines += [f"# {flag.about}. Flag: {option_of(section, field)}", f"# {field} = {shown}"]
        lines.append("")
    lines += ["# GPUs to share; without any, those of the machine are found.", "# [[gpu]]"]
    lines += ['# name = "v100"', '# memory = "16GiB"', ""]
    return "\n".join(lines)
