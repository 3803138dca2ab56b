"""Tests of diurnal profiles."""

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.node.diurnal_format import LIMIT_BYTES, decode_profiles, encode_profiles
from cotenant.node.model.tenant import COMMAND_LIMIT
from cotenant.predict.diurnal_profile import (
    BINS_PER_DAY,
    DAY_NS,
    PROGRAMS_LIMIT,
    DiurnalBin,
    DiurnalProfile,
    Program,
    in_order,
)
from cotenant.predict.diurnal_store import diurnal_profile_of, load_with, merged
from cotenant.predict.load import Load

PERIOD_NS = 100_000_000
rates = st.floats(0, 1e24)
times = st.builds(
    DiurnalBin,
    part=st.integers(0, BINS_PER_DAY - 1),
    usual=rates,
    days=st.integers(0, 2**31 - 1),
    day=st.integers(-1, 2**31 - 1),
    latest=rates,
    seconds=st.floats(0, 86_400),
)
days = st.lists(times, max_size=12, unique_by=lambda day_bin: day_bin.part).map(
    lambda bins: tuple(sorted(bins, key=lambda day_bin: day_bin.part))
)
programs = st.builds(
    Program,
    uid=st.integers(0, 2**32 - 1),
    task=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=COMMAND_LIMIT),
)
memories = st.dictionaries(programs, days, max_size=6)


@given(memories)
def test_encoded_profiles_decode_in_the_same_order(profiles: dict[Program, DiurnalProfile]) -> None:
    decoded, problem = decode_profiles(encode_profiles(profiles))
    assert (list(decoded.items()), problem) == (list(profiles.items()), "")


@given(memories, st.data())
@settings(max_examples=300)
def test_damaged_file_raises_nothing_and_decodes_to_valid_profiles(
    profiles: dict[Program, DiurnalProfile], data: st.DataObject
) -> None:
    sound = encode_profiles(profiles)
    begin = data.draw(st.integers(0, len(sound)))
    end = data.draw(st.integers(begin, len(sound)))
    noise = data.draw(st.binary(max_size=40))
    decoded, problem = decode_profiles(sound[:begin] + noise + sound[end:])
    assert decoded or problem or not profiles or (begin, end) != (0, len(sound))
    for program, day in decoded.items():
        assert 0 < len(program.task) <= COMMAND_LIMIT
        assert in_order(day)
        assert all(math.isfinite(rate) and rate >= 0 for day_bin in day for rate in (day_bin.usual, day_bin.latest))


@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_rejected_with_a_reason(data: bytes) -> None:
    decoded, problem = decode_profiles(data)
    assert not decoded
    assert problem


def test_foreign_newer_nested_or_large_file_is_rejected_with_a_reason() -> None:
    for data, word in (
        (b'{"format":"cotenant-profile","version":1}', "not a file of diurnal profiles"),
        (b'{"format":"cotenant-diurnal-profiles","version":2,"more":[1]}', "version 2"),
        (b'{"format":"cotenant-diurnal-profiles","version":1,"parts":48}', "48 parts"),
        (
            b'{"format":"cotenant-diurnal-profiles","version":1,"programs":[' + b"[" * 100_000,
            "not a file of diurnal profiles",
        ),
        (b'{"x":' + b"[" * 100_000, "not a file of diurnal profiles"),
        (b" " * (LIMIT_BYTES + 1), "larger"),
    ):
        decoded, problem = decode_profiles(data)
        assert not decoded
        assert word in problem


def test_invalid_program_is_skipped_and_others_are_decoded() -> None:
    day = (DiurnalBin(3, 1.5, 2, 9, 2.5, 900.0),)
    profiles = {Program(0, "a"): day, Program(0, "b"): day, Program(0, "c"): day}
    for good, bad in (
        (b'"task":"b"', b'"task":""'),
        (b'"task":"b","day":[[3,1.5,', b'"task":"b","day":[[3,-1.5,'),
        (b'"task":"b","day":[[3,1.5,', b'"task":"b","day":[[3,1e999,'),
        (b'"task":"b","day":[[3,1.5,', b'"task":"b","day":[[3,NaN,'),
        (b'"task":"b","day":[[3,', b'"task":"b","day":[[96,'),
        (b'"task":"b","day":[[', b'"task":"b","day":[[7,1.0],[3,1.0],['),
    ):
        data = encode_profiles(profiles)
        assert good in data
        decoded, problem = decode_profiles(data.replace(good, bad))
        assert Program(0, "b") not in decoded
        assert problem
        if b"NaN" not in bad:  # that is no JSON at all
            assert (list(decoded), "1 of 3" in problem) == ([Program(0, "a"), Program(0, "c")], True)


def test_largest_possible_file_is_within_the_limit() -> None:
    rate = 1.2345678901234567e-300
    day = tuple(DiurnalBin(part, rate, 2**31 - 1, 2**31 - 1, rate, 86399.12345678912) for part in range(BINS_PER_DAY))
    profiles = {Program(2**32 - 1, f"{number:03d}".ljust(COMMAND_LIMIT, "\x01")): day for number in range(300)}
    data = encode_profiles(profiles)
    assert len(data) <= LIMIT_BYTES
    decoded, problem = decode_profiles(data)
    assert not problem
    assert list(decoded) == list(profiles)[-PROGRAMS_LIMIT:]


@given(
    st.lists(st.tuples(st.integers(0, 5 * DAY_NS), st.integers(0, 10**6)), max_size=40),
    st.integers(10**7, 10**10),
)
def test_restored_load_has_the_saved_diurnal_profile_only(windows: list[tuple[int, int]], period_ns: int) -> None:
    load = Load()
    for at_ns, requests in sorted(windows):
        load = load.after(requests, at_ns)
    day = diurnal_profile_of(load, period_ns)
    assert decode_profiles(encode_profiles({Program(0, "a"): day})) == ({Program(0, "a"): day}, "")
    restored = load_with(day, period_ns)
    assert (restored.windows, restored.means, restored.errors, restored.mixed_error) == (0, (), (), 0.0)
    for before, after in zip(load.day, restored.day, strict=bool(windows)):
        assert (before.days, before.day, before.windows) == (after.days, after.day, after.windows)
        assert math.isclose(before.mean, after.mean, rel_tol=1e-9)
        assert math.isclose(before.total, after.total, rel_tol=1e-9)


@given(days, days, days, st.integers(0, 2**31))
def test_merging_profiles_is_idempotent_and_independent_of_order(
    first: DiurnalProfile, second: DiurnalProfile, third: DiurnalProfile, today: int
) -> None:
    assert merged(first, first, today) == first
    assert merged(first, merged(second, third, today), today) == merged(merged(third, first, today), second, today)
    assert in_order(merged(first, second, today))


def test_merging_prefers_later_then_longer_observations_but_not_future_days() -> None:
    bins = [
        DiurnalBin(5, 1.0, 1, 10, 1.0, 900.0),
        DiurnalBin(5, 2.0, 1, 11, 2.0, 5.0),
        DiurnalBin(5, 3.0, 1, 11, 3.0, 9.0),
    ]
    assert merged((bins[0],), (bins[1],), 11) == (bins[1],)
    assert merged((bins[2],), (bins[1],), 11) == (bins[2],)
    assert merged((bins[2],), (bins[0],), 10) == (bins[0],), "the clock was wrong when it was observed"
