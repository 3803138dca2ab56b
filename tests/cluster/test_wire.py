"""Tests of messages of a cluster."""

import re
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.cluster import wire
from cotenant.cluster.config import ClusterConfig
from cotenant.cluster.model.cluster import (
    Attempt,
    AttemptReport,
    GpuCondition,
    GpuReport,
    JobEnd,
    JobReport,
    JobSpec,
    JobState,
    OnlineUse,
    Quota,
)
from cotenant.cluster.model.event import AckEnd, NodeReport, StartJob, StopJob
from cotenant.cluster.wire import Role
from cotenant.errors import PeerError
from cotenant.predict.usage import TaskUse
from tests.support.effort import examples
from tests.support.strategies import amounts, rejects, shares, texts
from tests.support.tools import ROOT

VERSION = wire.VERSION
ROLES = (None, Role.NODE, Role.USER, Role.OPERATOR)

names = st.text("abzAZ09", min_size=1, max_size=2).map(lambda head: f"{head}._:/@-")
pems = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=40)
uses = st.builds(TaskUse, shares, memory_ppm=shares, kernel_ns=amounts)
reports = st.builds(
    GpuReport,
    names,
    amounts,
    amounts,
    shares,
    st.sampled_from(GpuCondition),
    st.lists(st.builds(OnlineUse, names, uses, amounts), max_size=2).map(tuple),
)
attempts = st.builds(Attempt, names, amounts)
places = st.lists(st.integers(0, 63), max_size=3).map(tuple)
reported = st.builds(
    NodeReport,
    names,
    amounts,
    st.lists(reports, max_size=2).map(tuple),
    st.lists(
        st.builds(AttemptReport, attempts, places, shares, amounts, st.none() | st.sampled_from(JobEnd), texts),
        max_size=2,
    ).map(tuple),
    amounts,
)
several = st.lists(names, max_size=2).map(tuple)
specs = st.builds(
    JobSpec,
    names,
    names,
    amounts,
    st.none() | uses,
    texts,
    amounts,
    st.integers(1, 64),
    several,
    shares,
    st.integers(-100, 100),
    several,
    texts,
    st.lists(texts, max_size=3).map(tuple),
    st.lists(st.tuples(texts, texts), max_size=2).map(tuple),
    texts,
    st.integers(0, 1000),
)
jobs = st.builds(JobReport, specs, st.sampled_from(JobState), amounts, amounts, texts, places, shares, why=texts)
version = st.just(VERSION)
requests: st.SearchStrategy[wire.Request] = st.one_of(
    st.builds(wire.GetAuthority, version),
    st.builds(wire.Enrol, version, pems, names, pems),
    st.builds(wire.ReportNode, version, amounts, reported),
    st.builds(wire.Renew, version, pems),
    st.builds(wire.Submit, version, specs),
    st.builds(wire.Cancel, version, names),
    st.builds(wire.ListJobs, version, several, texts, st.booleans(), st.booleans()),
    st.builds(wire.ListNodes, version, st.booleans()),
    st.builds(wire.MakeToken, version, st.integers(1, 100_000), st.integers(1, 10**18 // 4), texts),
    st.builds(wire.Issue, version, names, pems),
    st.builds(wire.Revoke, version, st.sampled_from(Role), names),
    st.builds(wire.Drain, version, names, st.booleans()),
    st.builds(wire.Forget, version, names),
    st.builds(wire.SetQuota, version, st.builds(Quota, names, amounts, st.integers(1, 1000))),
)
orders = st.one_of(
    st.builds(StartJob, texts, attempts, places, shares, specs, shares, amounts),
    st.builds(StopJob, texts, attempts, texts),
    st.builds(AckEnd, texts, attempts),
)
answers: st.SearchStrategy[wire.Answer] = st.one_of(
    st.builds(wire.AuthorityCertificate, version, pems),
    st.builds(wire.EnrolledIdentity, pems, texts),
    st.builds(wire.GrantLease, amounts, amounts, amounts),
    st.builds(wire.NodeOrder, orders),
    st.just(wire.Success()),
    st.builds(wire.Refusal, rejects),
    st.builds(wire.JobPage, st.lists(jobs, max_size=2), st.booleans(), amounts),
    st.builds(wire.NewToken, texts, texts),
    st.builds(wire.ProtocolFault, texts),
)


def is_allowed(request: wire.Request, role: Role | None) -> bool:
    """Return whether the reference allows this request for the role."""
    allowed = {
        None: (wire.GetAuthority, wire.Enrol),
        Role.NODE: (wire.ReportNode, wire.Renew),
        Role.USER: (wire.Submit, wire.Cancel, wire.ListJobs, wire.ListNodes, wire.Renew),
    }
    if role is Role.OPERATOR:
        return not isinstance(request, (*allowed[None], wire.ReportNode))
    return isinstance(request, allowed[role])


@given(requests, st.sampled_from(ROLES))
@settings(max_examples=examples(60, 5000))
def test_request_round_trip_depends_on_the_role(request: wire.Request, role: Role | None) -> None:
    frames = wire.frames_from(Role.NODE).feed(wire.encode(request))
    if is_allowed(request, role):
        assert [wire.decode_request(frame, role) for frame in frames] == [request]
    else:
        with pytest.raises(PeerError, match=r"may not send"):
            wire.decode_request(frames[0], role)


@given(answers)
@settings(max_examples=examples(40, 5000))
def test_answer_round_trip(answer: wire.Answer) -> None:
    assert [wire.decode_answer(frame) for frame in wire.answer_frames().feed(wire.encode(answer))] == [answer]


@given(requests, st.data())
@settings(max_examples=examples(60, 5000))
def test_damaged_message_is_valid_or_raises_peer_error(request: wire.Request, data: Any) -> None:
    payload = bytearray(wire.encode(request)[4:])
    for _ in range(data.draw(st.integers(1, 4))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    for role in ROLES:
        try:
            wire.decode_request(bytes(payload), role)
        except PeerError as error:
            assert str(error)  # noqa: PT017  either outcome is right, another exception is not


@given(st.binary(max_size=300))
@settings(max_examples=examples(60, 5000))
def test_random_bytes_are_rejected(noise: bytes) -> None:
    for decode in (lambda: wire.decode_request(noise, Role.OPERATOR), lambda: wire.decode_answer(noise)):
        with pytest.raises(PeerError):
            decode()


def test_every_request_is_allowed_for_some_role() -> None:
    for kind in get_args(wire.Request):
        assert any(kind in allowed for allowed in wire._ALLOWED.values()), kind


def names_in(text: str) -> set[str]:
    return set(re.findall(r"`([a-z_-]+)`", text))


def test_reference_names_every_message_field_and_setting() -> None:
    docs = ROOT / "docs"
    _, _, after = (docs / "reference" / "wire.md").read_text(encoding="utf-8").partition("\n## Cluster protocol\n")
    protocol = names_in(after.partition("\n## ")[0])
    for kind in (*get_args(wire.Request), *get_args(wire.Answer)):
        assert kind.__struct_config__.tag in protocol, kind
        missing = {field for field in kind.__struct_fields__ if field != "version"} - protocol
        assert not missing, (kind, missing)
    guide = names_in((docs / "how-to" / "run-a-cluster.md").read_text(encoding="utf-8"))
    assert set(ClusterConfig.__struct_fields__) <= guide


def test_wrong_version_is_reported_before_other_errors() -> None:
    newer = msgspec.msgpack.encode({"type": "report-node", "version": 3, "rumours": []})
    with pytest.raises(PeerError, match=r"this controller speaks version 2 of the cluster's protocol, not 3"):
        wire.decode_request(newer, Role.NODE)


@pytest.mark.parametrize("role", ROLES)
def test_frame_limit_depends_on_the_role(role: Role | None) -> None:
    limit = wire._LIMITS[role]
    assert wire.frames_from(role).feed(limit.to_bytes(4, "little")) == []
    with pytest.raises(PeerError, match=rf"1 to {limit} bytes"):
        wire.frames_from(role).feed((limit + 1).to_bytes(4, "little"))


def test_largest_report_fits_into_a_frame() -> None:
    online = OnlineUse(
        "n" * 128,
        TaskUse(998_576, ((998_576, 998_576),) * 8, 998_576, 1 << 62, 1 << 62, 1 << 62, 1 << 62, 998_576),
        (1 << 63) - 1,
    )
    gpu = GpuReport("T" * 128, 1 << 62, 1 << 62, 1_000_000, online=(online,) * 32)
    attempt = AttemptReport(Attempt("j" * 128, 1 << 62), tuple(range(64)), detail="d" * 500)
    report = NodeReport("n" * 128, 1 << 62, (gpu,) * 64, (attempt,) * 256, 1 << 62)
    assert len(wire.encode(wire.ReportNode(VERSION, 1, report))) <= wire.NODE_LIMIT_BYTES
