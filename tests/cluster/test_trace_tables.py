"""Tests of readers of cluster traces."""

import csv
import gzip
import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.cluster.sim.openb import OpenbService, read_openb_nodes, read_openb_pods, with_services
from cotenant.cluster.sim.philly import read_philly
from cotenant.cluster.sim.table import (
    JOB_COLUMNS,
    NODE_COLUMNS,
    TraceJob,
    TraceNode,
    read_jobs,
    read_nodes,
    window,
)
from cotenant.errors import ConfigError
from tests.support.effort import examples

NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,12}", fullmatch=True)
JOBS = st.lists(
    st.builds(
        TraceJob,
        name=NAMES,
        user=NAMES,
        submit_ns=st.integers(0, 10**8).map(lambda ms: ms * 1_000_000),
        work_ns=st.integers(0, 10**8).map(lambda ms: ms * 1_000_000),
        gpus=st.integers(1, 64),
        profile=st.sampled_from(["", "bert-b2"]),
        memory_bytes=st.integers(0, 100_000).map(lambda mib: mib << 20),
        types=st.lists(NAMES, max_size=3).map(tuple),
    ),
    max_size=8,
    unique_by=lambda job: job.name,
)
NODES = st.lists(
    st.integers(1, 8).flatmap(
        lambda gpus: st.builds(
            TraceNode,
            name=NAMES,
            type=NAMES,
            gpus=st.just(gpus),
            memory_bytes=st.integers(1, 100_000).map(lambda mib: mib << 20),
            peaks_ppm=st.none() | st.lists(st.integers(0, 10**6), min_size=gpus, max_size=gpus).map(tuple),
        )
    ),
    max_size=6,
    unique_by=lambda node: node.name,
)


def table(columns: tuple[str, ...], rows: list[list[object]]) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerows([columns, *rows])
    return text.getvalue().encode()


@given(JOBS, st.booleans())
@settings(max_examples=examples(20, 500))
def test_jobs_are_read_by_submission(jobs: list[TraceJob], packed: bool) -> None:
    rows: list[list[object]] = [
        [
            *(job.name, job.user, f"{job.submit_ns / 1e9:.3f}", f"{job.work_ns / 1e9:.3f}", job.gpus, job.profile),
            *(job.memory_bytes >> 20, "|".join(job.types)),
        ]
        for job in jobs
    ]
    content = table(JOB_COLUMNS, rows)
    assert read_jobs(gzip.compress(content) if packed else content, "f") == sorted(jobs, key=lambda job: job.submit_ns)


@given(NODES)
@settings(max_examples=examples(20, 500))
def test_nodes_round_trip(nodes: list[TraceNode]) -> None:
    rows: list[list[object]] = [
        [
            *(node.name, node.type, node.gpus, node.memory_bytes >> 20),
            "" if node.peaks_ppm is None else "|".join(str(peak / 1e6) for peak in node.peaks_ppm),
        ]
        for node in nodes
    ]
    assert read_nodes(table(NODE_COLUMNS, rows), "f") == nodes


@given(JOBS, st.integers(0, 10**14), st.integers(1, 10**14), st.integers(0, 5), st.integers(1, 9))
@settings(max_examples=examples(20, 500))
def test_window_contains_the_jobs_submitted_in_it(
    jobs: list[TraceJob], begin_ns: int, span_ns: int, limit: int, compress: int
) -> None:
    ordered = sorted(jobs, key=lambda job: job.submit_ns)
    kept = window(ordered, begin_ns, span_ns, limit, compress)
    inside = [job.name for job in ordered if begin_ns <= job.submit_ns < begin_ns + span_ns * compress]
    assert [job.name for job in kept] == (inside[:limit] if limit else inside)
    assert all(0 <= job.submit_ns < span_ns for job in kept)


HEAD = ",".join(JOB_COLUMNS)
BAD_JOBS = {
    "no header": ("a,u,0,1,1,,0,\n", ":1", "header"),
    "a field too few": (f"{HEAD}\na,u,0,1,1,,0\n", ":2", "row"),
    "no number": (f"{HEAD}\na,u,0,1,1,,0,\nb,u,soon,1,1,,0,\n", ":3", "submit_s"),
    "before the beginning": (f"{HEAD}\na,u,-1,1,1,,0,\n", ":2", "submit_s"),
    "no GPU": (f"{HEAD}\na,u,0,1,0,,0,\n", ":2", "gpus"),
    "too many GPUs": (f"{HEAD}\na,u,0,1,65,,0,\n", ":2", "gpus"),
    "half a GPU": (f"{HEAD}\na,u,0,1,0.5,,0,\n", ":2", "gpus"),
    "a name that no job can have": (f"{HEAD}\n-a,u,0,1,1,,0,\n", ":2", "job"),
    "twice": (f"{HEAD}\na,u,0,1,1,,0,\na,u,0,1,1,,0,\n", ":3", "job"),
}


@pytest.mark.parametrize("name", BAD_JOBS)
def test_damaged_row_is_reported(name: str) -> None:
    text, place, field = BAD_JOBS[name]
    with pytest.raises(ConfigError) as caught:
        read_jobs(text.encode(), "jobs.csv")
    assert f"jobs.csv{place}" in str(caught.value)
    assert caught.value.field == field


def test_node_with_too_few_loads_is_reported() -> None:
    with pytest.raises(ConfigError, match=r"nodes\.csv:2.*each of its 2 GPUs"):
        read_nodes((",".join(NODE_COLUMNS) + "\nn,V100,2,100,0.5\n").encode(), "nodes.csv")


def test_truncated_gzip_file_is_reported() -> None:
    with pytest.raises(ConfigError, match="is not a complete gzip file"):
        read_jobs(gzip.compress(HEAD.encode())[:-4], "jobs.csv.gz")


PHILLY = """timestamp,duration,num_gpus,gpu_time,cluster
2017-03-01 00:00:10,66.0,1,66.0,11cb48
2017-02-28 23:59:55,10.5,8,84,6214e9
2017-02-28 23:59:55,0.0,1,0,6214e9
2020-03-01 00:00:00,5,1,5,6214e9
2020-02-28 00:00:00,5,1,5,6214e9
"""


def test_philly_instants_start_at_the_first_job() -> None:
    jobs = read_philly(PHILLY.encode(), "p")
    first = ("philly-1", "vc-6214e9", 0, 10_500_000_000, 8)
    assert (jobs[0].name, jobs[0].user, jobs[0].submit_ns, jobs[0].work_ns, jobs[0].gpus) == first
    assert jobs[1].submit_ns == 15_000_000_000
    assert len(jobs) == 4  # one had no length
    assert jobs[3].submit_ns - jobs[2].submit_ns == 2 * 86_400_000_000_000  # 2020 has a 29th of February


@pytest.mark.parametrize("stamp", ["2017-13-01 00:00:00", "2017-01-01", "2017-01-01 24:00:00", ""])
def test_philly_invalid_timestamp_is_reported(stamp: str) -> None:
    text = PHILLY.splitlines()[0] + f"\n{stamp},1,1,1,a\n"
    with pytest.raises(ConfigError, match=r"p:2.*timestamp"):
        read_philly(text.encode(), "p")


PODS = """name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time
s1,1,1,1,600,,LS,Running,0,100,0
s2,1,1,1,600,T4,LS,Running,10,100,10
s3,1,1,2,1000,,LS,Running,20,100,20
s4,1,1,1,400,T4,LS,Running,20,100,20
j1,1,1,1,500,P100|T4|T4,BE,Succeeded,50,90,60
j2,1,1,1,1000,,BE,Failed,40,45,
j3,1,1,1,1000,,BE,Failed,40,40,40
none,1,1,0,0,,BE,Failed,40,45,40
other,1,1,1,1000,,Burstable,Failed,40,45,40
"""
OPENB_NODES = """sn,cpu_milli,memory_mib,gpu,model
n1,1,1,2,P100
n2,1,1,2,T4
cpu,1,1,0,
"""


@pytest.mark.parametrize("again", ["s1,1,1,1,600,,LS,Running,0,100,0", "j1,1,1,1,500,,BE,Succeeded,50,90,60"])
def test_openb_duplicate_pod_is_reported(again: str) -> None:
    with pytest.raises(ConfigError, match=r"p:11.*pod = '[sj]1': appears twice \(also p:[26]\)"):
        read_openb_pods((PODS + again + "\n").encode(), "p")


def test_openb_duplicate_node_is_reported() -> None:
    with pytest.raises(ConfigError, match=r"n:5.*node = 'n1': appears twice \(also n:2\)"):
        read_openb_nodes((OPENB_NODES + "n1,1,1,2,T4\n").encode(), "n")


def test_openb_services_and_jobs_are_read() -> None:
    services, jobs = read_openb_pods(PODS.encode(), "p")
    assert [job.name for job in jobs] == ["j2", "j1"]
    assert (jobs[1].submit_ns, jobs[1].work_ns, jobs[1].types) == (50 * 10**9, 30 * 10**9, ("P100", "T4"))
    assert services[0] == OpenbService("s1", 1, 600, ())
    nodes = read_openb_nodes(OPENB_NODES.encode(), "n")
    assert [(node.name, node.gpus, node.memory_bytes >> 30) for node in nodes] == [("n1", 2, 16), ("n2", 2, 16)]
    placed, unplaceable = with_services(nodes, services)
    # s1 comes first; s2 wants a T4; s3 wants two whole ones of one node, and none has them; s4 fits beside s2.
    assert [node.peaks_ppm for node in placed] == [(600_000, 0), (1_000_000, 0)]
    assert unplaceable == 1
