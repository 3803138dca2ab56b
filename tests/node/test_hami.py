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
def test_a_number_and_a_suffix_is_a_size(number: int, unit: str, write: type[str]) -> None:
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
def test_the_variable_of_the_tenant_s_device_comes_first(environ: dict[str, str], expected: object) -> None:
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
def test_a_share_is_a_percentage_and_all_of_it_no_limit(environ: dict[str, str], expected: object) -> None:
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
def test_a_value_that_cannot_be_is_named_by_its_variable(environ: dict[str, str]) -> None:
    [(name, value)] = environ.items()
    with pytest.raises(ConfigError) as raised:
        (memory_of if name.startswith(MEMORY) else share_of)(environ)
    assert (raised.value.field, raised.value.value) == (name, value)


def test_a_flag_or_the_config_wins_and_that_is_said() -> None:
    environ = {MEMORY: "2g", SHARE: "30"}
    messages: list[str] = []
    taken = apply_hami_limits(RunConfig(), (), environ, messages.append)
    assert (int(taken.memory), int(taken.share)) == (2 << 30, 300_000)
    assert messages == [f"memory 2GiB by {MEMORY}", f"share 30% by {SHARE}"]
    messages.clear()
    given_ones = RunConfig(memory=SizeBytes(1 << 30), share=ShareOfWhole(0))
    kept = apply_hami_limits(given_ones, {("run", "share")}, environ, messages.append)
    assert kept == given_ones
    assert messages == [f"{MEMORY} is set too: --memory 1GiB is used", f"{SHARE} is set too: --share 0% is used"]


def test_a_static_limit_needs_a_share_from_anywhere() -> None:
    static = RunConfig(limit="static")
    with pytest.raises(ConfigError, match=r"run\.limit = 'static': a static limit needs a share; add --share"):
        validate_limit(apply_hami_limits(static, (), {}, print))
    validate_limit(apply_hami_limits(static, (), {SHARE: "30"}, print))
    validate_limit(RunConfig(limit="static", share=ShareOfWhole(1)))
    validate_limit(RunConfig(limit="off"))
