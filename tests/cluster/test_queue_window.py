"""Tests of selection of the waiting jobs of a round."""

import pytest

from cotenant.predict.usage import TaskUse
from tests.support.cluster_steps import BUSY, GPU, ClusterScript, replaced, starts

_MANY = 1_040
"""More jobs than a round with one open GPU considers."""
_HEAVY = TaskUse(1_000_000, ((1_000_000, 1_000_000),), 1_000_000, 2_000_000, active_ppm=1_000_000)


@pytest.mark.parametrize(
    "wants", [{"types": ("H100",)}, {"gpus": 2}, {"memory_bytes": 1 << 50}], ids=["type", "gang", "memory"]
)
def test_jobs_that_fit_no_open_gpu_hide_no_other_job(wants: dict[str, object]) -> None:
    story = ClusterScript()
    story.join("a")
    for number in range(_MANY):
        story.submit(f"nowhere-{number}", **wants)
    story.submit("ordinary", "bob")
    assert starts(story.until(2)) == {"ordinary": ("a", (0,))}


def test_jobs_that_would_be_unsafe_hide_no_other_job() -> None:
    story = ClusterScript(slowdown_limit_ppm=1)
    story.join("a", replaced(GPU, online=(BUSY,), offer_ppm=900_000))
    for number in range(_MANY):
        story.submit(f"harmful-{number}", use=_HEAVY)
    story.submit("unknown", "bob")
    assert starts(story.until(2)) == {"unknown": ("a", (0,))}


def test_equal_jobs_fill_the_window_up_to_the_number_of_gpus() -> None:
    story = ClusterScript()
    story.join("a", GPU, replaced(GPU, type="T4"))
    for number in range(_MANY):
        story.submit(f"alike-{number}", types=("T4",))
    story.submit("ordinary", "bob", types=("V100",))
    assert starts(story.until(2)) == {"alike-0": ("a", (1,)), "ordinary": ("a", (0,))}


def test_window_contains_equal_jobs_of_each_user() -> None:
    story = ClusterScript(fair=True)
    story.join("a")
    story.machine.job_table.users.used["ann"] = 1e6
    for number in range(_MANY):
        story.submit(f"alike-{number}")
    story.submit("last", "bob")
    assert sorted(starts(story.until(2))) == ["last"]
