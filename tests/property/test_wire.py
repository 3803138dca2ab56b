"""Does the wire carry every message, and refuse whatever is none?"""

import msgspec
import pytest

from cotenant.apps.run import spec_of
from cotenant.domain.tenant import Kind, TenantSpec
from cotenant.errors import PeerError
from cotenant.format import wire
from cotenant.format.config import RunConfig


def test_a_newline_after_a_name_is_not_part_of_a_name() -> None:
    spec = msgspec.structs.replace(TenantSpec(Kind.OFFLINE, 5), name="web\n")
    with pytest.raises(PeerError):
        wire.decode_request(wire.encode(wire.Join(wire.VERSION, spec))[4:])


def test_a_command_that_is_no_text_can_still_join() -> None:
    spec = spec_of(RunConfig(task="t\udcff"), ["./caf\udce9", "x"])  # how Python gives us the bytes of a Latin-1 name
    assert wire.decode_request(wire.encode(wire.Join(wire.VERSION, spec))[4:]) == wire.Join(wire.VERSION, spec)
    assert (spec.task, spec.command) == ("t?", "./caf? x")
