"""HAMi's environment variables have the same meaning here."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.errors import ConfigError
from cotenant.node.client.hami import apply_hami_limits, memory_of, share_of
from cotenant.node.config.file import RunConfig, validate_limit
from cotenant.units.toml import ShareOfWhole, SizeBytes

MEMORY = "CUDA_DEVICE_MEMORY_LIMIT"
SHARE = "CUDA_DEVICE_SM_LIMIT"
UNITS = {"": 0, "k": 10, "K": 10, "m": 20, "M": 20, "g": 30, "G": 30}


@given(st.integers(1, 1 << 30), st.sampled_from(sorted(UNITS)), st.sampled_from([str, hex]))
def test_memory_limit_is_a_number_with_an_optional_unit(number: int, unit: str, write: type[str]) -> None:
    assert memory_of({MEMORY: f"{write(number)}{unit}"}) == (MEMORY, number << UNITS[unit])


@pytest.mark.parametrize(
    "environ, expected",
    [
        ({}, None),
        ({MEMORY: ""}, None),
        ({MEMORY: "0"}, None),
        ({MEMORY: "4096m"}, (MEMORY, 4 << 30)),
        ({MEMORY: "010k"}, (MEMORY, 8 << 10)),
        ({MEMORY: "1g", MEMORY + "_0": "2g"}, (MEMORY + "_0", 2 << 30)),
        ({MEMORY: "1g", MEMORY + "_0": "0"}, (MEMORY, 1 << 30)),
        ({MEMORY + "_1": "2g"}, None),
    ],
)
def test_memory_limit_of_the_first_device_takes_precedence(environ: dict[str, str], expected: object) -> None:
    assert memory_of(environ) == expected


@pytest.mark.parametrize(
    "environ, expected",
    [
        ({}, None),
        ({SHARE: "0"}, None),
        ({SHARE: "100"}, None),
        ({SHARE: "30"}, (SHARE, 300_000)),
        ({SHARE: "30", SHARE + "_0": "50"}, (SHARE + "_0", 500_000)),
        ({SHARE: "30", SHARE + "_0": "100"}, None),
    ],
)
def test_share_limit_is_a_percentage_and_100_is_no_limit(environ: dict[str, str], expected: object) -> None:
    assert share_of(environ) == expected


@pytest.mark.parametrize(
    "environ",
    [
        {MEMORY: "lots"},
        {MEMORY: "4GiB"},
        {MEMORY: "-1"},
        {MEMORY: "08"},
        {MEMORY: "1.5g"},
        {MEMORY + "_0": "99999999999g"},
        {SHARE: "101"},
        {SHARE: "30%"},
        {SHARE: "1k"},
    ],
)
def test_invalid_value_is_reported_with_its_variable(environ: dict[str, str]) -> None:
    [(name, value)] = environ.items()
    with pytest.raises(ConfigError) as raised:
        (memory_of if name.startswith(MEMORY) else share_of)(environ)
    assert (raised.value.field, raised.value.value) == (name, value)


def test_flag_or_config_overrides_the_variables_with_a_message() -> None:
    environ = {MEMORY: "2g", SHARE: "30"}
    messages: list[str] = []
    config = apply_hami_limits(RunConfig(), (), environ, messages.append)
    assert (int(config.memory), int(config.share)) == (2 << 30, 300_000)
    assert messages == [f"memory 2GiB by {MEMORY}", f"share 30% by {SHARE}"]
    messages.clear()
    explicit = RunConfig(memory=SizeBytes(1 << 30), share=ShareOfWhole(0))
    result = apply_hami_limits(explicit, {("run", "share")}, environ, messages.append)
    assert result == explicit
    assert messages == [f"{MEMORY} is set too: --memory 1GiB is used", f"{SHARE} is set too: --share 0% is used"]


def test_static_limit_needs_a_share_from_flag_or_variable() -> None:
    static = RunConfig(limit="static")
    with pytest.raises(ConfigError, match=r"run\.limit = 'static': a static limit needs a share; add --share"):
        validate_limit(apply_hami_limits(static, (), {}, print))
    validate_limit(apply_hami_limits(static, (), {SHARE: "30"}, print))
    validate_limit(RunConfig(limit="static", share=ShareOfWhole(1)))
    validate_limit(RunConfig(limit="off"))
