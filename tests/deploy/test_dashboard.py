"""The Grafana dashboard and the Prometheus rules use metrics and labels that a node serves."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
GRAFANA = ROOT / "deploy" / "grafana"
PANELS = json.loads((GRAFANA / "cotenant.json").read_text())["panels"]
RULES = [rule for group in yaml.safe_load((GRAFANA / "rules.yml").read_text())["groups"] for rule in group["rules"]]
QUERIES = [target["expr"] for panel in PANELS for target in panel["targets"]] + [rule["expr"] for rule in RULES]
RECORDED = {rule["record"] for rule in RULES if "record" in rule}
ADDED = {"instance", "job", "le"}
"""Labels that Prometheus adds, and the bound of a bucket."""


def documented() -> dict[str, set[str]]:
    """Return the labels of every metric in the reference, which another test compares with a running node."""
    found: dict[str, set[str]] = {}
    for line in (ROOT / "docs" / "reference" / "metrics.md").read_text().splitlines():
        if match := re.match(r"\| `(cotenant_\w+)` \| (\w+) \|([\w, ]*)\|", line):
            name, kind, labels = match.groups()
            names = [name] if kind != "histogram" else [f"{name}_bucket", f"{name}_sum", f"{name}_count"]
            for one in names:
                found[one] = {label.strip() for label in labels.split(",") if label.strip()}
    return found


@pytest.mark.parametrize("query", QUERIES)
def test_every_query_names_existing_metrics_and_labels(query: str) -> None:
    metrics = documented()
    used = re.findall(r"\bcotenant_\w+", query)
    assert used or any(name in query for name in (*RECORDED, "up{")), query
    assert set(used) <= set(metrics), query
    labels = set(re.findall(r"(\w+)\s*[!=]~?\"", query))
    for group in re.findall(r"by \(([^)]*)\)", query):
        labels |= {label.strip() for label in group.split(",")}
    allowed = ADDED.union(*(metrics[name] for name in used), {"tenant"} if not used else set())
    assert labels <= allowed, query


def test_every_panel_has_a_query_and_no_two_share_a_place() -> None:
    assert all(panel["targets"] for panel in PANELS)
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in PANELS]
    assert len(set(places)) == len(places)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool (Debian: apt-get install prometheus)")
def test_prometheus_accepts_the_rules_and_the_config() -> None:
    for words in (["check", "rules", "rules.yml"], ["check", "config", "prometheus.yml"]):
        done = subprocess.run(["promtool", *words], cwd=GRAFANA, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
