"""Every error has exactly one class, and the page of errors agrees with the table."""

import re
import signal

from hypothesis import given
from hypothesis import strategies as st

from cotenant.node.model.fault import FaultScope, Remedy, Source
from cotenant.node.policy.protect.errors import CLASSES, classify
from tests.support.error_table_page import page
from tests.support.tools import ROOT

# Of cuda.h: "the process must be terminated and relaunched", and 710, whose context must be destroyed; 911 of both.
STICKY = (226, 700, 702, 710, 714, 715, 716, 717, 718, 719, 721, 810, 911)
TENANTS_XIDS = (13, 31, 43, 45, 68, 109)


def test_every_code_has_exactly_one_class() -> None:
    pairs = [(one.source, code) for one in CLASSES for code in one.codes]
    assert len(pairs) == len(set(pairs))
    assert [one.source for one in CLASSES if not one.codes] == list(Source)
    assert len({one.name for one in CLASSES}) == len(CLASSES)


@given(st.sampled_from(Source), st.integers(-1, 2000))
def test_classify_knows_everything(source: Source, code: int) -> None:
    found = classify(source, code)
    assert found in CLASSES
    assert found.source is source
    assert code in found.codes or not any(code in one.codes for one in CLASSES if one.source is source)


def test_a_process_that_cannot_go_on_is_ended() -> None:
    assert {classify(Source.CUDA, code).remedy for code in STICKY} == {Remedy.END}
    assert {classify(Source.CUDA, code).remedy for code in (1, 2, 201, 400, 600, 701, 807, 808, 809)} == {Remedy.NONE}


def test_a_tenants_own_xid_leaves_the_device_alone() -> None:
    assert {(classify(Source.XID, xid).scope, classify(Source.XID, xid).remedy) for xid in TENANTS_XIDS} == {
        (FaultScope.TENANT, Remedy.END)
    }
    assert {classify(Source.XID, xid).remedy for xid in (48, 95, 64, 74)} == {Remedy.DRAIN}
    assert {classify(Source.XID, xid).remedy for xid in (79, 119, 120, 62)} == {Remedy.DISABLE}


def test_only_an_end_that_was_wanted_or_comes_again_forbids_a_restart() -> None:
    forbidden = {code for one in CLASSES if not one.restart for code in one.codes}
    wanted = {signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM}
    assert forbidden == wanted | {signal.SIGXCPU, signal.SIGXFSZ}


def test_the_cuda_codes_are_the_drivers() -> None:
    known = set(re.findall(r"ERROR\(\w+, (\d+),", (ROOT / "native/softgpu/abi/errors.def").read_text("utf-8")))
    named = {str(code) for one in CLASSES if one.source is Source.CUDA for code in one.codes}
    assert named <= known


def test_the_page_is_the_table() -> None:
    assert (ROOT / "docs/reference/errors.md").read_text("utf-8") == page()
