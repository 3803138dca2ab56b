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
days = st.lists(times, max_size=12, unique_by=lambda one: one.part).map(
    lambda some: tuple(sorted(some, key=lambda one: one.part))
)
programs = st.builds(
    Program,
    uid=st.integers(0, 2**32 - 1),
    task=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=COMMAND_LIMIT),
)
memories = st.dictionaries(programs, days, max_size=6)


@given(memories)
def test_what_is_written_is_read_in_the_same_order(known: dict[Program, DiurnalProfile]) -> None:
    again, why = decode_profiles(encode_profiles(known))
    assert (list(again.items()), why) == (list(known.items()), "")


@given(memories, st.data())
@settings(max_examples=300)
def test_no_damage_raises_and_whatever_is_read_is_sound(
    known: dict[Program, DiurnalProfile], data: st.DataObject
) -> None:
    sound = encode_profiles(known)
    begin = data.draw(st.integers(0, len(sound)))
    end = data.draw(st.integers(begin, len(sound)))
    noise = data.draw(st.binary(max_size=40))
    found, why = decode_profiles(sound[:begin] + noise + sound[end:])
    assert found or why or not known or (begin, end) != (0, len(sound))
    for program, day in found.items():
        assert 0 < len(program.task) <= COMMAND_LIMIT
        assert in_order(day)
        assert all(math.isfinite(figure) and figure >= 0 for one in day for figure in (one.usual, one.latest))


@given(st.binary(max_size=300))
def test_any_bytes_are_named(data: bytes) -> None:
    found, why = decode_profiles(data)
    assert not found
    assert why


def test_what_is_foreign_newer_deep_or_too_large_is_named() -> None:
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
        found, why = decode_profiles(data)
        assert not found
        assert word in why


def test_one_bad_program_does_not_cost_the_others_theirs() -> None:
    day = (DiurnalBin(3, 1.5, 2, 9, 2.5, 900.0),)
    kept = {Program(0, "a"): day, Program(0, "b"): day, Program(0, "c"): day}
    for good, bad in (
        (b'"task":"b"', b'"task":""'),
        (b'"task":"b","day":[[3,1.5,', b'"task":"b","day":[[3,-1.5,'),
        (b'"task":"b","day":[[3,1.5,', b'"task":"b","day":[[3,1e999,'),
        (b'"task":"b","day":[[3,1.5,', b'"task":"b","day":[[3,NaN,'),
        (b'"task":"b","day":[[3,', b'"task":"b","day":[[96,'),
        (b'"task":"b","day":[[', b'"task":"b","day":[[7,1.0],[3,1.0],['),
    ):
        data = encode_profiles(kept)
        assert good in data
        found, why = decode_profiles(data.replace(good, bad))
        assert Program(0, "b") not in found
        assert why
        if b"NaN" not in bad:  # that is no JSON at all
            assert (list(found), "1 of 3" in why) == ([Program(0, "a"), Program(0, "c")], True)


def test_the_largest_file_is_within_the_limit() -> None:
    rate = 1.2345678901234567e-300
    day = tuple(DiurnalBin(part, rate, 2**31 - 1, 2**31 - 1, rate, 86399.12345678912) for part in range(BINS_PER_DAY))
    known = {Program(2**32 - 1, f"{number:03d}".ljust(COMMAND_LIMIT, "\x01")): day for number in range(300)}
    data = encode_profiles(known)
    assert len(data) <= LIMIT_BYTES
    found, why = decode_profiles(data)
    assert not why
    assert list(found) == list(known)[-PROGRAMS_LIMIT:]


@given(
    st.lists(st.tuples(st.integers(0, 5 * DAY_NS), st.integers(0, 10**6)), max_size=40),
    st.integers(10**7, 10**10),
)
def test_a_load_gets_back_the_day_that_it_had_and_nothing_else(seen: list[tuple[int, int]], period_ns: int) -> None:
    load = Load()
    for at_ns, requests in sorted(seen):
        load = load.after(requests, at_ns)
    day = diurnal_profile_of(load, period_ns)
    assert decode_profiles(encode_profiles({Program(0, "a"): day})) == ({Program(0, "a"): day}, "")
    again = load_with(day, period_ns)
    assert (again.windows, again.means, again.errors, again.mixed_error) == (0, (), (), 0.0)
    for before, after in zip(load.day, again.day, strict=bool(seen)):
        assert (before.days, before.day, before.windows) == (after.days, after.day, after.windows)
        assert math.isclose(before.mean, after.mean, rel_tol=1e-9)
        assert math.isclose(before.total, after.total, rel_tol=1e-9)


@given(days, days, days, st.integers(0, 2**31))
def test_it_does_not_matter_who_of_several_leaves_first(
    one: DiurnalProfile, two: DiurnalProfile, three: DiurnalProfile, today: int
) -> None:
    assert merged(one, one, today) == one
    assert merged(one, merged(two, three, today), today) == merged(merged(three, one, today), two, today)
    assert in_order(merged(one, two, today))


def test_of_several_the_latest_day_counts_and_most_of_it_but_none_to_come() -> None:
    seen = [
        DiurnalBin(5, 1.0, 1, 10, 1.0, 900.0),
        DiurnalBin(5, 2.0, 1, 11, 2.0, 5.0),
        DiurnalBin(5, 3.0, 1, 11, 3.0, 9.0),
    ]
    assert merged((seen[0],), (seen[1],), 11) == (seen[1],)
    assert merged((seen[2],), (seen[1],), 11) == (seen[2],)
    assert merged((seen[2],), (seen[0],), 10) == (seen[0],), "the clock was wrong when it was seen"
