"""Does every config survive the file, and every mistake get its line and field?"""

import pytest

from cotenant.errors import ConfigError
from cotenant.format.config import decode_config


@pytest.mark.parametrize("line", ['node.place = "spread\\n"', 'node.admit = "reserve\\n"', 'run.name = "web\\n"'])
def test_a_newline_after_a_word_makes_another_word(line: str) -> None:
    with pytest.raises(ConfigError):
        decode_config(line, "here.toml")
