"""Pure parts of the controller: specifications, constraints, claims, reasons, predictions and the queue of requests."""

import json

import msgspec
import pytest

from cotenant.cluster.kubernetes import names
from cotenant.cluster.kubernetes.api import NO_ANSWER, ApiRequest, Response
from cotenant.cluster.kubernetes.controller.conditions import reason_of
from cotenant.cluster.kubernetes.controller.constraints import allows, constraint_of
from cotenant.cluster.kubernetes.controller.dispatcher import Dispatcher, Limits, Operation, Urgency
from cotenant.cluster.kubernetes.controller.fleet import NodeRecord
from cotenant.cluster.kubernetes.controller.manifests import TAINT_NO_OFFLINE, release_pod
from cotenant.cluster.kubernetes.controller.mapping import instant_of, job_name, job_spec, timestamp_of
from cotenant.cluster.kubernetes.controller.objects import KubeNode, Pod
from cotenant.cluster.kubernetes.controller.predictions import decode_learned, encode_learned
from cotenant.cluster.kubernetes.gpu_node import GpuNode, Use
from cotenant.cluster.model.cluster import GpuCondition
from cotenant.errors import ConfigError
from cotenant.predict.usage import TaskUse
from cotenant.units.instant import MILLISECOND_NS, SECOND_NS


def pod_of(spec: dict | None = None, owner: str = "train", **annotations: str) -> Pod:
    tree = {
        "metadata": {
            "name": "a",
            "namespace": "team",
            "uid": "0123",
            "annotations": {f"cotenant.dev/{key.replace('_', '-')}": value for key, value in annotations.items()},
            "ownerReferences": [{"kind": "Job", "name": owner, "uid": "j", "controller": True}] if owner else [],
        },
        "spec": {"schedulingGates": [{"name": "other"}, {"name": names.GATE}], **(spec or {})},
    }
    return msgspec.convert(tree, Pod)


def test_a_pod_becomes_a_job() -> None:
    pod = pod_of(
        {"priority": 2_000_000},
        memory="4GiB",
        gpus="2",
        gang="g",
        gang_size="3",
        avoid="web, search",
        group="heavy",
    )
    spec = job_spec(pod, "pool")
    assert (spec.name, spec.user, spec.profile) == ("team/a@0123", "team", "team/train")
    assert (spec.memory_bytes, spec.gpus, spec.priority, spec.retries) == (4 << 30, 2, 2_000_000, 0)
    assert (spec.gang, spec.gang_size, spec.pool) == ("team/g", 3, "pool")
    assert (spec.avoid, spec.group) == (("web", "search"), "heavy")


def test_profiles_are_named_by_annotation_task_or_owner() -> None:
    assert job_spec(pod_of(profile="p", task="t"), "").profile == "p"
    assert job_spec(pod_of(task="t"), "").profile == "t"
    assert job_spec(pod_of(owner=""), "").profile == "team/a"


def test_names_of_jobs_are_short_and_unique() -> None:
    pod = pod_of()
    pod.metadata.name, pod.metadata.uid = "n" * 253, "u" * 36
    assert len(job_name(pod)) == 128
    assert job_name(pod).endswith("@" + "u" * 36)


@pytest.mark.parametrize(
    "field, value, message",
    [
        ("memory", "much", r"cotenant.dev/memory = 'much'"),
        ("gpus", "0", r"cotenant.dev/gpus = '0': write a whole number from 1 to 64"),
        ("gang_size", "-1", r"cotenant.dev/gang-size = '-1': write a whole number from 1 to 1000"),
    ],
)
def test_wrong_annotations_are_explained(field: str, value: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        job_spec(pod_of(None, **{field: value}), "")


def node_of(labels: dict[str, str], taints: list[dict[str, str]] | None = None) -> KubeNode:
    return msgspec.convert({"metadata": {"name": "n", "labels": labels}, "spec": {"taints": taints or []}}, KubeNode)


def affinity(*expressions: dict) -> dict:
    alternatives = [{"matchExpressions": [expression]} for expression in expressions]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": alternatives}}
    return {"affinity": {"nodeAffinity": required}}


@pytest.mark.parametrize(
    "spec, is_allowed",
    [
        ({}, True),
        ({"nodeSelector": {"zone": "a"}}, True),
        ({"nodeSelector": {"zone": "b"}}, False),
        (affinity({"key": "zone", "operator": "In", "values": ["a", "b"]}), True),
        (affinity({"key": "zone", "operator": "NotIn", "values": ["a"]}), False),
        (affinity({"key": "other", "operator": "NotIn", "values": ["a"]}), True),
        (affinity({"key": "zone", "operator": "Exists"}), True),
        (affinity({"key": "zone", "operator": "DoesNotExist"}), False),
        (affinity({"key": "size", "operator": "Gt", "values": ["7"]}), True),
        (affinity({"key": "size", "operator": "Lt", "values": ["8"]}), False),
        (affinity({"key": "zone", "operator": "Gt", "values": ["1"]}), False),
        (affinity({"key": "zone", "operator": "Unknown"}), False),
        (affinity({"key": "zone", "operator": "In", "values": ["b"]}, {"key": "size", "operator": "Exists"}), True),
        (affinity(), False),
    ],
)
def test_selectors_and_affinities(spec: dict, is_allowed: bool) -> None:
    assert allows(constraint_of(pod_of(spec)), node_of({"zone": "a", "size": "8"})) is is_allowed


@pytest.mark.parametrize(
    "tolerations, taint, is_allowed",
    [
        ([], {"key": "k", "effect": "NoSchedule"}, False),
        ([], {"key": "k", "effect": "PreferNoSchedule"}, True),
        ([], {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}, True),
        ([{"key": "k", "operator": "Exists"}], {"key": "k", "effect": "NoSchedule"}, True),
        ([{"operator": "Exists"}], {"key": "k", "effect": "NoExecute"}, True),
        ([{"key": "k", "value": "v"}], {"key": "k", "value": "v", "effect": "NoSchedule"}, True),
        ([{"key": "k", "value": "w"}], {"key": "k", "value": "v", "effect": "NoSchedule"}, False),
        ([{"key": "k", "operator": "Exists", "effect": "NoExecute"}], {"key": "k", "effect": "NoSchedule"}, False),
    ],
)
def test_taints(tolerations: list, taint: dict, is_allowed: bool) -> None:
    assert allows(constraint_of(pod_of({"tolerations": tolerations})), node_of({}, [taint])) is is_allowed


def test_equal_constraints_have_one_pool() -> None:
    one = pod_of({"nodeSelector": {"a": "1", "b": "2"}, "tolerations": [{"key": "x"}, {"key": "y"}]})
    other = pod_of({"tolerations": [{"key": "y"}, {"key": "x"}], "nodeSelector": {"b": "2", "a": "1"}})
    assert constraint_of(one).pool == constraint_of(other).pool
    assert constraint_of(one).pool != constraint_of(pod_of()).pool


def test_the_release_keeps_other_gates_and_selectors() -> None:
    request = release_pod(pod_of({"nodeSelector": {"zone": "a"}}), "host")
    assert json.loads(request.body or b"") == [
        {"op": "test", "path": "/metadata/uid", "value": "0123"},
        {"op": "test", "path": "/spec/schedulingGates/1/name", "value": names.GATE},
        {"op": "remove", "path": "/spec/schedulingGates/1"},
        {"op": "add", "path": "/spec/nodeSelector/kubernetes.io~1hostname", "value": "host"},
    ]
    bound = release_pod(pod_of({"nodeSelector": {"kubernetes.io/hostname": "host"}}), "host")
    assert len(json.loads(bound.body or b"")) == 3


def test_the_taint_that_online_claims_tolerate_is_that_of_the_plugin() -> None:
    slices = pytest.importorskip("cotenant.cluster.kubernetes.plugin.slices")
    assert slices.TAINT_NO_OFFLINE == TAINT_NO_OFFLINE


@pytest.mark.parametrize(
    "sentence, reason",
    [
        ("no node has joined", "NoNode"),
        ("none of 8 GPUs is open: 8 held", "NoOpenGpu"),
        ("none of 2 open GPUs is suitable: 2 with too little memory free", "NoSuitableGpu"),
        ("no node has 4 suitable open GPUs", "NoSuitableNode"),
        ("only 1 of the 2 members of its gang g exist", "GangIncomplete"),
        ("it waits for a round in which its gang g gets 2 GPUs at once", "GangWaits"),
        ("it waits for one of the next rounds; before that: its claim could not be created", "WaitsForRound"),
    ],
)
def test_reasons_in_camel_case(sentence: str, reason: str) -> None:
    assert reason_of(sentence) == reason


def test_timestamps() -> None:
    instant = instant_of("2026-11-18T09:00:01Z")
    assert timestamp_of(instant) == "2026-11-18T09:00:01Z"
    assert timestamp_of(instant + 1_234_567, micro=True) == "2026-11-18T09:00:01.001234Z"
    assert instant_of("") == 0


def gpu_node(*gpus: tuple[str, int, str]) -> GpuNode:
    statuses = [
        {"uuid": uuid, "index": index, "type": "T", "memoryBytes": 8, "freeBytes": 9, "offerPpm": 5, "condition": state}
        for uuid, index, state in gpus
    ]
    return msgspec.convert({"metadata": {"name": "n"}, "status": {"gpus": statuses}}, GpuNode)


def test_gpus_keep_their_position_while_they_are_not_reported() -> None:
    record = NodeRecord("n")
    record.update(gpu_node(("b", 1, "healthy"), ("a", 0, "healthy")))
    assert record.uuids == ["a", "b"]
    before = record.gpus
    record.update(gpu_node(("a", 0, "healthy"), ("b", 1, "healthy")))
    assert record.gpus is before
    record.update(gpu_node(("b", 0, "overlimit"), ("c", 1, "strange")))
    assert record.uuids == ["a", "b", "c"]
    conditions = [gpu.condition for gpu in record.gpus]
    assert conditions == [GpuCondition.DISABLED, GpuCondition.OVERLIMIT, GpuCondition.UNHEALTHY]
    assert record.gpus[1].free_bytes == 8
    record.set_silent(is_silent=True)
    assert {gpu.condition for gpu in record.gpus} == {GpuCondition.UNREPORTED}


def test_uses_are_written_and_read_alike() -> None:
    use = TaskUse(1, ((2, 3),), 4, 5, 6, 7, 8, 9)
    assert msgspec.json.decode(msgspec.json.encode(Use.of(use)), type=Use).task_use() == use


def test_predictions_are_bounded_and_the_latest_are_kept() -> None:
    learned = tuple((f"profile-{number:06d}", "co-runners", 1, -5) for number in range(20_000))
    text = encode_learned(learned)
    assert len(text) < 1 << 20
    kept = decode_learned(text)
    assert 0 < len(kept) < len(learned)
    assert kept == learned[-len(kept) :]
    assert decode_learned(encode_learned(())) == ()
    with pytest.raises(ValueError, match="Expected"):
        decode_learned('[["a", "b", 0, 0]]')


class Sent:
    """A queue of requests with a manual clock and transport."""

    def __init__(self, **limits: float) -> None:
        self.tickets: dict[str, int] = {}
        self.answers: list[str] = []
        self.dispatcher = Dispatcher(self._send, Limits(**limits))  # type: ignore[arg-type]

    def _send(self, ticket: int, request: ApiRequest) -> None:
        self.tickets[request.path] = ticket

    def submit(self, path: str, urgency: Urgency = Urgency.BEGIN, *, is_wanted: bool = True) -> None:
        self.dispatcher.submit(
            Operation(urgency, ApiRequest("POST", path), lambda _: self.answers.append(path), lambda: is_wanted)
        )

    def answer(self, path: str, status: int, now: int, retry_after_s: float = 0.0) -> None:
        self.dispatcher.answered(self.tickets.pop(path), Response(status, b"", retry_after_s), now)


def test_urgent_requests_go_first_and_unwanted_ones_never() -> None:
    sent = Sent(in_flight=2)
    sent.submit("report", Urgency.REPORT)
    sent.submit("begin")
    sent.submit("obsolete", is_wanted=False)
    sent.submit("finish", Urgency.FINISH)
    sent.dispatcher.dispatch(0)
    assert list(sent.tickets) == ["finish", "begin"]
    sent.answer("finish", 200, 0)
    sent.dispatcher.dispatch(0)
    assert list(sent.tickets) == ["begin", "report"]
    assert sent.answers == ["finish"]


def test_the_rate_is_limited() -> None:
    sent = Sent(per_second=10, burst=3, in_flight=100)
    for number in range(6):
        sent.submit(str(number))
    sent.dispatcher.dispatch(0)
    assert list(sent.tickets) == ["0", "1", "2"]
    due = sent.dispatcher.next_wakeup()
    assert due is not None
    assert 0 < due <= 100 * MILLISECOND_NS + 1
    sent.dispatcher.dispatch(due)
    assert list(sent.tickets) == ["0", "1", "2", "3"]


def test_temporary_failures_are_repeated_after_a_delay() -> None:
    sent = Sent()
    sent.submit("a")
    sent.dispatcher.dispatch(0)
    sent.answer("a", 429, 0, retry_after_s=3.0)
    sent.dispatcher.dispatch(2 * SECOND_NS)
    assert not sent.tickets
    assert sent.dispatcher.next_wakeup() == 3 * SECOND_NS
    sent.dispatcher.dispatch(3 * SECOND_NS)
    sent.answer("a", 409, 3 * SECOND_NS)
    assert sent.answers == ["a"]


def test_a_silent_server_gets_one_request_at_a_time() -> None:
    sent = Sent(in_flight=4)
    for number in range(4):
        sent.submit(str(number))
    sent.dispatcher.dispatch(0)
    for number in range(4):
        sent.answer(str(number), NO_ANSWER, 0)
    now = 0
    for _ in range(20):
        due = sent.dispatcher.next_wakeup()
        assert due is not None
        now = max(now, due)
        sent.dispatcher.dispatch(now)
        assert len(sent.tickets) <= 1
        for path in list(sent.tickets):
            sent.answer(path, NO_ANSWER, now)
    assert not sent.answers
    while sent.dispatcher.waiting or sent.tickets:
        now += SECOND_NS
        sent.dispatcher.dispatch(now)
        for path in list(sent.tickets):
            sent.answer(path, 200, now)
    assert sorted(sent.answers) == ["0", "1", "2", "3"]
