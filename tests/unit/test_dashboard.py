# SPDX-License-Identifier: Apache-2.0
"""The Grafana dashboard asks for what is exported, and for all of it."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

from prometheus_client import REGISTRY

import rollout_router.metrics  # noqa: F401 - registers what is exported

ROOT = Path(__file__).parents[2]
SELECTOR = re.compile(r"(rollout_router_\w+)(?:\{([^}]*)\})?")
BY = re.compile(r"by \(([^)]*)\) \((?:rate|increase)\((rollout_router_\w+)")
SUFFIXES = {"counter": ["_total"], "gauge": [""], "histogram": ["_bucket", "_sum", "_count"]}


def queries() -> Iterator[str]:
    panels = json.loads((ROOT / "packaging" / "grafana.json").read_text())["panels"]
    yield from (target["expr"] for panel in panels for target in panel.get("targets", []))


def exported() -> dict[str, set[str]]:
    """Names of samples, with the labels of each."""
    found = {}
    for metric in REGISTRY.collect():
        labels = {name for sample in metric.samples for name in sample.labels}
        for suffix in SUFFIXES.get(metric.type, []):
            found[metric.name + suffix] = labels
    return {name: labels for name, labels in found.items() if name.startswith("rollout_router_")}


def asked() -> set[str]:
    return {name for query in queries() for name, _ in SELECTOR.findall(query)}


def test_every_name_and_label_of_the_dashboard_is_exported() -> None:
    names = exported() | {"rollout_router_swept_total": {"what"}}  # its children come with sweeps
    assert asked() <= set(names)
    for query in queries():
        for name, selector in SELECTOR.findall(query):
            assert set(re.findall(r"(\w+)=", selector)) <= names[name], query
        for labels, name in BY.findall(query):
            assert set(labels.split(", ")) <= names[name], query


def test_every_metric_has_a_place_on_the_dashboard() -> None:
    whole = re.compile(r"_(total|bucket|sum|count)$")
    shown = {whole.sub("", name) for name in asked()}
    assert {whole.sub("", name) for name in exported()} <= shown


def test_the_brackets_of_every_query_match() -> None:
    for query in queries():
        rest = re.sub(r'"[^"]*"|[^()\[\]{}]', "", query)
        while (shorter := re.sub(r"\(\)|\[\]|\{\}", "", rest)) != rest:
            rest = shorter
        assert rest == "", query
