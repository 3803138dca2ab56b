"""Does the wire carry every message, and refuse whatever is none?"""

import msgspec
import pytest

from cotenant.domain.tenant import Kind, TenantSpec
from cotenant.errors import PeerError
from cotenant.format import wire


def test_a_newline_after_a_name_is_not_part_of_a_name() -> None:
    spec = msgspec.structs.replace(TenantSpec(Kind.OFFLINE, 5), name="web\n")
    with pytest.raises(PeerError):
        wire.decode_request(wire.encode(wire.Join(wire.VERSION, spec))[4:])
