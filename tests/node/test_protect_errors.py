"""Every error has exactly one class, and the page of errors agrees with the table."""

import re
import signal

from hypothesis import given
from hypothesis import strategies as st

from cotenant.node.model.fault import FaultScope, PageFault, Remedy, Source
from cotenant.node.policy.protect.errors import CLASSES, classify
from tests.support.error_table_page import page
from tests.support.tools import ROOT

# Of cuda.h: "the process must be terminated and relaunched", and 710, whose context must be destroyed; 911 of both.
STICKY = (226, 700, 702, 710, 714, 715, 716, 717, 718, 719, 721, 810, 911)
TENANT_XIDS = (13, 31, 43, 45, 68, 109)


def test_every_code_has_exactly_one_class() -> None:
    pairs = [(error_class.source, code) for error_class in CLASSES for code in error_class.codes]
    assert len(pairs) == len(set(pairs))
    assert [error_class.source for error_class in CLASSES if not error_class.codes] == list(Source)
    assert len({error_class.name for error_class in CLASSES}) == len(CLASSES)


@given(st.sampled_from(Source), st.integers(-1, 2000))
def test_every_code_has_a_class_of_its_source(source: Source, code: int) -> None:
    result = classify(source, code)
    assert result in CLASSES
    assert result.source is source
    assert code in result.codes or not any(
        code in error_class.codes for error_class in CLASSES if error_class.source is source
    )


def test_sticky_cuda_errors_end_the_process() -> None:
    assert {classify(Source.CUDA, code).remedy for code in STICKY} == {Remedy.END}
    assert {classify(Source.CUDA, code).remedy for code in (1, 2, 201, 400, 600, 701, 807, 808, 809)} == {Remedy.NONE}


def test_xid_remedy_depends_on_its_scope() -> None:
    assert {(classify(Source.XID, xid).scope, classify(Source.XID, xid).remedy) for xid in TENANT_XIDS} == {
        (FaultScope.TENANT, Remedy.END)
    }
    assert {classify(Source.XID, xid).remedy for xid in (48, 95, 64, 74)} == {Remedy.DRAIN}
    assert {classify(Source.XID, xid).remedy for xid in (79, 119, 120, 62)} == {Remedy.DISABLE}


def test_only_requested_ends_exceeded_limits_and_forged_pages_forbid_a_restart() -> None:
    forbidden = [error_class for error_class in CLASSES if not error_class.restart]
    requested = {signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM}
    signals = {code for error_class in forbidden if error_class.source is Source.SIGNAL for code in error_class.codes}
    assert signals == requested | {signal.SIGXCPU, signal.SIGXFSZ}
    assert {error_class.source for error_class in forbidden} == {Source.SIGNAL, Source.PAGES}
    assert {classify(Source.PAGES, fault).remedy for fault in PageFault} == {Remedy.EVICT}


def test_every_cuda_code_exists_in_the_driver() -> None:
    driver_codes = set(re.findall(r"ERROR\(\w+, (\d+),", (ROOT / "native/softgpu/abi/errors.def").read_text("utf-8")))
    table_codes = {
        str(code) for error_class in CLASSES if error_class.source is Source.CUDA for code in error_class.codes
    }
    assert table_codes <= driver_codes


def test_page_of_errors_agrees_with_the_table() -> None:
    assert (ROOT / "docs/reference/errors.md").read_text("utf-8") == page()
