"""Real traces import, and both file forms give the same numbers."""

from __future__ import annotations

import csv
import gzip
import io
import os
import tarfile
from pathlib import Path

import pytest

from cotenant.errors import ConfigError
from cotenant.profile.import_files import as_profile, read_recordings
from cotenant.profile.profile_file import encode_profile
from cotenant.workload.kernel_table import LIST_COLUMNS
from cotenant.workload.timeline import Timeline

pytestmark = pytest.mark.live

ROOT = Path(__file__).parents[2]
DATA = Path(os.environ.get("COTENANT_DATA", ROOT.parent / "shared" / "data")) / "kernel_timelines"
needs_data = pytest.mark.skipif(
    not DATA.is_dir(), reason=f"no measured timelines in {DATA}: set COTENANT_DATA to where they are"
)
TABLES = sorted(path.name for path in DATA.glob("*.csv.gz"))

# The tables made from each trace, according to the summary of the data.
TABLES_OF_TRACE = {
    "critical_path_alexnet_benchmark_result_2869224_1695835535_trace.json.gz": ["a100_alexnet_forward"],
    "ns_resolution_trace_rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz": ["v100_resnet50_ddp_train_ns"],
    "resnet50_num_workers_4_worker0.1623213129365.pt.trace.json.gz": ["v100_resnet50_train_bs32_loader4_b"],
    "traces_h100_Falconsai_nsfw_image_detection__1016002.json.gz": ["h100_vit_base_inference_eager"],
    "traces_h100_gaunernst_bert-small-uncased__1016001.json.gz": ["h100_bert_small_inference_eager"],
    "dlrm_kineto.tar.gz": [f"v100_dlrm_train_8gpu_rank{rank}" for rank in range(8)],
}
# The tables were made with floating-point microseconds since 1970, which are a quarter of one apart.
ROUNDING_NS = 300
NAME_LIMIT = 200


def timelines(path: Path) -> list[Timeline]:
    recordings = list(read_recordings(path))
    assert all(isinstance(recording, Timeline) for recording in recordings)
    return [recording for recording in recordings if isinstance(recording, Timeline)]


@needs_data
def test_every_timeline_imports_with_the_numbers_of_its_summary() -> None:
    with (DATA / "SUMMARY.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(TABLES) == 34
    for row in rows:
        (timeline,) = timelines(DATA / row["file"])
        profile = as_profile(timeline)
        assert len(timeline.activities) == int(row["kernels"]) + int(row["memops"]), row["file"]
        assert profile.busy_ns / profile.span_ns == pytest.approx(float(row["busy_frac"]), abs=1e-4), row["file"]
        assert profile.span_ns / 1e6 == pytest.approx(float(row["span_ms"]), abs=1e-3), row["file"]
        assert profile.idle_ns / 1e6 == pytest.approx(float(row["gap_total_ms"]), rel=2e-3, abs=2e-3), row["file"]


@needs_data
@pytest.mark.parametrize("name", TABLES_OF_TRACE)
def test_raw_trace_imports_to_the_same_numbers_as_its_table(name: str) -> None:
    traces = timelines(DATA / "raw" / name)
    tables = [timelines(DATA / f"{table}.csv.gz")[0] for table in TABLES_OF_TRACE[name]]
    assert len(traces) == len(tables)
    for trace, table in zip(traces, tables, strict=True):
        first_ns = trace.activities[0].start_ns
        assert len(trace.activities) == len(table.activities)
        order = [(activity.start_ns - first_ns, activity.device_ns, activity.stream) for activity in trace.activities]
        assert [stream for _, _, stream in sorted(order)] == [
            stream
            for _, _, stream in sorted(
                (activity.start_ns, activity.device_ns, activity.stream) for activity in table.activities
            )
        ]
        for activity, table_activity in zip(trace.activities, table.activities, strict=True):
            assert abs(activity.start_ns - first_ns - table_activity.start_ns) <= ROUNDING_NS
            assert abs(activity.device_ns - table_activity.device_ns) <= 1
        profiles = as_profile(trace), as_profile(table)
        assert profiles[0].busy_ns == pytest.approx(profiles[1].busy_ns, rel=1e-3, abs=ROUNDING_NS)
        assert _totals(trace) == pytest.approx(_totals(table), abs=1000)


def _totals(timeline: Timeline) -> dict[tuple[object, ...], int]:
    """Return the device time by kernel; names are truncated as in the tables."""
    totals: dict[tuple[object, ...], int] = {}
    for activity in timeline.activities:
        key = (activity.kernel.function[:NAME_LIMIT], activity.kernel.grid, activity.kernel.block, activity.kernel.work)
        totals[key] = totals.get(key, 0) + activity.device_ns
    return totals


LIST = f"{LIST_COLUMNS}\nconv,1,0,80,1000\nnorm,0,0,8,500\n".encode()


def test_compressed_and_plain_files_import_equally(tmp_path: Path) -> None:
    (tmp_path / "net.csv").write_bytes(LIST)
    (tmp_path / "net.csv.gz").write_bytes(gzip.compress(LIST))
    with tarfile.open(tmp_path / "net.tar.gz", "w:gz") as archive:
        member = tarfile.TarInfo("folder/net.csv")
        member.size = len(LIST)
        archive.addfile(member, io.BytesIO(LIST))
    read = [list(read_recordings(tmp_path / name)) for name in ("net.csv", "net.csv.gz", "net.tar.gz")]
    assert read[0] == read[1] == read[2]
    profile = as_profile(read[0][0])
    assert profile.task == "net"
    (tmp_path / "net.json").write_bytes(encode_profile(profile))
    assert list(read_recordings(tmp_path / "net.json")) == [profile]


@pytest.mark.parametrize(
    "name, data",
    [
        ("letter.txt", b"Dear profiler,"),
        ("cut.csv.gz", gzip.compress(LIST, mtime=0)[:-20]),
        ("cut.tar.gz", b"\x1f\x8b" + b"\0" * 50),
        ("empty.json", b""),
        ("number.json", b"7"),
        ("array.json", b"[1, 2]"),
    ],
)
def test_unreadable_file_is_reported(tmp_path: Path, name: str, data: bytes) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ConfigError, match=name):
        list(read_recordings(tmp_path / name))


def test_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        list(read_recordings(tmp_path / "none.json"))
