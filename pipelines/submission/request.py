"""What is asked of Vertex Pipelines: one PipelineJob as JSON, and how two of them differ.

`submit --dry-run` prints this document, Google's client sends it, and what the service holds for a run id is compared
with it. Nothing here needs a network, credentials or Google's libraries.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from contracts.canonical import canonical, canonical_hash
from contracts.errors import ConfigError
from contracts.result import LINE_LABEL

if TYPE_CHECKING:
    from contracts.config import RunConfig
    from pipelines.compile import CompiledLine

# Of a PipelineJob: google.cloud.aiplatform.constants.pipeline.
_RUN_ID = re.compile(r"[a-z][-a-z0-9]{0,127}")
# Compute Engine's default account: what the service fills in where a request names none.
_DEFAULT_ACCOUNT = re.compile(r"\d+-compute@developer\.gserviceaccount\.com")


@dataclass(frozen=True)
class Submission:
    """One PipelineJob to be created."""

    project: str
    region: str
    run_id: str
    request: dict[str, Any]
    """The PipelineJob as JSON, its fields in the API's names (displayName, pipelineSpec, runtimeConfig, ...)."""

    @property
    def name(self) -> str:
        """Full resource name."""
        return f"projects/{self.project}/locations/{self.region}/pipelineJobs/{self.run_id}"

    @property
    def spec_hash(self) -> str:
        """Hash of the spec's canonical form."""
        return canonical_hash(self.request["pipelineSpec"])

    def to_json(self) -> dict[str, Any]:
        """Return what `--dry-run` prints."""
        return {
            "parent": f"projects/{self.project}/locations/{self.region}",
            "pipelineJobId": self.run_id,
            "pipelineSpecSha256": self.spec_hash,
            "pipelineJob": canonical(self.request),
        }


@dataclass(frozen=True)
class Difference:
    """One thing in which two requests differ."""

    what: str
    wanted: str
    found: str

    def __str__(self) -> str:
        """Say it in one line."""
        return f"{self.what}: {_short(self.found)} there, {_short(self.wanted)} here"


def make_request(config: RunConfig, compiled: CompiledLine, region: str) -> dict[str, Any]:
    """Return the PipelineJob of a line as JSON.

    Args:
        config: The resolved configuration.
        compiled: The compiled line.
        region: Region of the pipeline and its CustomJobs.
    """
    request: dict[str, Any] = {
        "displayName": compiled.display_name,
        "pipelineSpec": compiled.spec,
        "runtimeConfig": {
            "gcsOutputDirectory": compiled.pipeline_root,
            "parameterValues": {**compiled.parameters, "region": region},
            # After a failure the record of the run is still written.
            "failurePolicy": "PIPELINE_FAILURE_POLICY_FAIL_SLOW",
        },
        "labels": {**compiled.labels, LINE_LABEL: config.run.name},
    }
    if config.cloud.service_account:
        request["serviceAccount"] = config.cloud.service_account
    if config.cloud.kms_key:
        request["encryptionSpec"] = {"kmsKeyName": config.cloud.kms_key}
    return request


def find_differences(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> list[Difference]:
    """Compare two PipelineJobs in what decides what runs; labels that only the service knows are its own."""
    ours, theirs = _facts(wanted), _facts(found)
    labels = {name for name in theirs if name.startswith("label ")}
    names = dict.fromkeys([*ours, *(name for name in theirs if name not in labels)])
    return [
        Difference(name, ours.get(name, ""), theirs.get(name, ""))
        for name in names
        if ours.get(name, "") != theirs.get(name, "")
    ]


def make_run_id(line: str) -> str:
    """Return a new id: the line's name, the time (UTC) and four digits."""
    name = re.sub(r"[^a-z0-9]+", "-", line.lower()).strip("-") or "line"
    prefix = name if name[0].isalpha() else f"line-{name}"
    return f"{prefix}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{random.SystemRandom().randrange(10**4):04d}"


def check_run_id(run_id: str) -> str:
    """Return an id that Vertex takes.

    Raises:
        ConfigError: It does not.
    """
    if _RUN_ID.fullmatch(run_id):
        return run_id
    raise ConfigError(
        f"--run-id {run_id}",
        allowed="a lower-case letter, then lower-case letters, digits and '-', 128 characters at most",
        todo="choose another id, or leave --run-id out and one is made",
    )


def _facts(request: Mapping[str, Any]) -> dict[str, str]:
    """Return what decides what runs, as text; what is unset is left out."""
    runtime = request.get("runtimeConfig", {})
    account = request.get("serviceAccount", "")
    facts = {
        "pipeline spec (sha256)": canonical_hash(request.get("pipelineSpec", {})),
        "pipeline root": runtime.get("gcsOutputDirectory", ""),
        "failure policy": runtime.get("failurePolicy", ""),
        "service account": "" if _DEFAULT_ACCOUNT.fullmatch(account) else account,
        "key": request.get("encryptionSpec", {}).get("kmsKeyName", ""),
    }
    facts |= {f"parameter {name}": _text(value) for name, value in runtime.get("parameterValues", {}).items()}
    facts |= {f"label {name}": value for name, value in request.get("labels", {}).items()}
    return {name: text for name, text in facts.items() if text}


def _text(value: Any) -> str:
    from contracts.canonical import canonical_json

    return value if isinstance(value, str) else canonical_json(value)


def _short(text: str) -> str:
    if not text:
        return "nothing"
    return text if len(text) <= 120 else f"{text[:60]}...{text[-50:]}"
