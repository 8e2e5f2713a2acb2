"""What Vertex AI and Kubeflow can render of a run's artifacts, by kfp's own classes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from google.protobuf import json_format
from kfp import dsl

# What lineage shows, and what the pages of both render:
# https://docs.cloud.google.com/vertex-ai/docs/pipelines/output-html-md and
# https://docs.cloud.google.com/vertex-ai/docs/pipelines/visualize-pipeline
RENDERED: dict[str, type[dsl.Artifact]] = {
    kind.schema_title: kind
    for kind in (dsl.Metrics, dsl.ClassificationMetrics, dsl.HTML, dsl.Markdown, dsl.Artifact, dsl.Dataset, dsl.Model)
}
# Of each stage, by the output's name; FOLDERS has the one that stands for its folder.
KINDS = {
    "metrics": "system.Metrics",
    "summary": "system.Markdown",
    "page": "system.HTML",
    "classes": "system.ClassificationMetrics",
    "shards": "system.Dataset",
    "report": "system.Artifact",
    "model": "system.Model",
    "served": "system.Model",
}
FOLDERS = {"shard": "shards", "profile": "report", "train": "model", "export": "served"}
# https://cloud.google.com/vertex-ai/docs/reference/rest/v1/projects.locations.metadataStores.artifacts
METADATA_LIMIT = 200_000


def reported_artifacts(job: Any) -> dict[str, dict[str, dict[str, Any]]]:
    """Return a run's artifacts as the service tells of them, by stage and output, as JSON.

    Args:
        job: The PipelineJob as JSON, or its message.
    """
    values = job if isinstance(job, dict) else json_format.MessageToDict(type(job).pb(job))
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for detail in values["jobDetail"]["taskDetails"]:
        outputs = {name: entry["artifacts"][0] for name, entry in detail.get("outputs", {}).items()}
        if {"metrics", "page"} <= set(outputs):
            # Each metric has its stage in front.
            found[next(iter(outputs["metrics"]["metadata"])).partition("_")[0]] = outputs
    return found


def check_artifact(name: str, artifact: Mapping[str, Any]) -> dsl.Artifact:
    """Assert that an artifact is what kfp's class of its type would be, and return it as that class."""
    assert artifact["schemaTitle"] == KINDS[name]
    assert artifact["schemaVersion"] == RENDERED[KINDS[name]].schema_version
    made = RENDERED[artifact["schemaTitle"]](name=name, uri=artifact["uri"], metadata=dict(artifact["metadata"]))
    assert made.schema_title == artifact["schemaTitle"] and made.uri.startswith("gs://")
    assert len(str(artifact["metadata"])) < METADATA_LIMIT
    if isinstance(made, dsl.Metrics):
        for key, value in made.metadata.items():
            assert isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value), key
        return made
    words = {key: value for key, value in made.metadata.items() if key not in ("confusionMatrix", "confidenceMetrics")}
    assert all(isinstance(value, str | int | float) for value in words.values()), words
    assert {"stage", "contract_uri", "manifest_sha256", "fingerprint"} <= set(words)
    if isinstance(made, dsl.ClassificationMetrics):
        check_classification(made.metadata)
    return made


def check_classification(metadata: Mapping[str, Any]) -> None:
    """Assert that metadata is what kfp writes for the same numbers."""
    expected = dsl.ClassificationMetrics()
    if matrix := metadata.get("confusionMatrix"):
        names = [entry["displayName"] for entry in matrix["annotationSpecs"]]
        expected.log_confusion_matrix(names, [entry["row"] for entry in matrix["rows"]])
    if points := metadata.get("confidenceMetrics"):
        columns = [[point[key] for point in points] for key in ("falsePositiveRate", "recall", "confidenceThreshold")]
        expected.log_roc_curve(*columns)
    assert expected.metadata == {name: metadata[name] for name in expected.metadata}
    assert expected.metadata or metadata["note"]


def follow_served(artifacts: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[str]:
    """Return the hashes from the served file to the listing of the raw files, by the artifacts' metadata alone.

    Each stage's artifacts all say the same, so those of one of them are followed.
    """

    def facts_of(stage: str) -> Mapping[str, Any]:
        facts = [entry["metadata"] for name, entry in artifacts[stage].items() if name != "metrics"]
        for key in ("contract_uri", "manifest_sha256", "fingerprint"):
            assert len({entry[key] for entry in facts}) == 1
        return facts[0]

    export, train, shard = facts_of("export"), facts_of("train"), facts_of("shard")
    assert export["made_from_checkpoint"] == train["parameters_sha256"]
    assert train["made_from_shards"] == shard["fingerprint"]
    assert facts_of("profile")["made_from_shards"] == shard["fingerprint"]
    return [
        export["served_sha256"],
        export["made_from_checkpoint"],
        train["made_from_shards"],
        shard["made_from_listing"],
    ]
