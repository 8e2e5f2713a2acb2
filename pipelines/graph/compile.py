"""`shardline compile`: a configuration into the pipeline that Vertex AI runs, and all that a submission needs.

What a configuration decides is in the pipeline; the region is a parameter, so that a try in another region is the same
specification. The stages' sections lie in the bucket, named by
their hash: nothing here writes them (pipelines/submission/submit.py does).
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from contracts import storage
from contracts.canonical import canonical, canonical_hash
from contracts.config import STAGES, RunConfig
from contracts.config.load import stage_config
from contracts.errors import ConfigError
from contracts.own_code import code_hash, pin_code
from contracts.pinned import pin

if TYPE_CHECKING:
    from pipelines.plan import Plan

CONFIGS_FOLDER = "configs"
PIPELINE_FOLDER = "pipeline"


@dataclass(frozen=True)
class CompiledLine:
    """A pipeline and its first submission."""

    spec: dict[str, Any]
    """PipelineSpec as JSON values, whole numbers as integers; `hash` is its name."""
    parameters: dict[str, Any]
    """Of `cloud.region`; the specification has them as defaults too."""
    documents: dict[str, bytes]
    """By URI: own code, and the sections of the configuration, that must be there before a submission; named by their
    content."""
    display_name: str
    pipeline_root: str
    labels: dict[str, str]

    @property
    def hash(self) -> str:
        """Hash of the specification, which is its name."""
        return canonical_hash(self.spec)


def compile_ahead(config: RunConfig, say: Callable[[str], None]) -> CompiledLine:
    """Compile the line of a configuration as its submission would have it, before anything of it is made.

    Args:
        config: The resolved configuration, with absolute paths.
        say: Told what stands for something that is not there yet.

    Raises:
        ConfigError: The plan's first problem.
    """
    from pipelines.plan import plan_of
    from pipelines.submission.preparations import look_ahead

    ahead = look_ahead(config, say)
    compiled = compile_line(ahead.config, plan_of(ahead.config, local_source=ahead.local_source))
    for placeholder in ahead.placeholders:
        say(f"placeholder: {placeholder}")
    return compiled


def compile_line(config: RunConfig, plan: Plan) -> CompiledLine:
    """Compile the line of a configuration.

    Args:
        config: The resolved configuration, with absolute paths.
        plan: Its plan (pipelines/plan.py).

    Raises:
        ConfigError: The plan's first problem.
    """
    from pipelines.images.record import find_containers

    plan.require()
    line = storage.join(storage.normalise(config.run.root), config.run.name)
    code = pin_code(config, line)
    containers = find_containers(config)
    config = code.config
    documents, pinned = _make_documents(_as_it_runs(config, containers.pipeline_image, plan.price_usd_per_h), line)
    parameters = {
        "line": line,
        "flags": "",
        "region": config.cloud.region,
        "strategy": config.resources.strategy,
        "max_wait": f"{config.resources.max_wait_s}s",
        "timeout": f"{int(config.resources.timeout_hours * 3600)}s",
        # A cap on the cost is of the training alone.
        "train_timeout": f"{plan.timeout_s}s",
        **pinned,
        **headline_parameters(config),
    }
    return CompiledLine(
        spec=_compile(config, containers, parameters),
        parameters=parameters,
        documents={**code.documents(), **documents},
        display_name=config.run.name,
        pipeline_root=storage.join(line, PIPELINE_FOLDER),
        labels=dict(config.cloud.labels),
    )


def headline_parameters(config: RunConfig) -> dict[str, Any]:
    """Return what a reader of the console wants to know of a run; nothing reads them but people."""
    code = f"shardline {importlib.metadata.version('shardline')}"
    own = code_hash(config.code)
    return {
        "learning_rate": config.train.learning_rate,
        "global_batch_size": config.train.global_batch_size,
        "data": config.sharding.source,
        "code_version": code + (f", own code {own[:12]}" if own else ""),
    }


def write_spec(spec: dict[str, Any], path: Path) -> None:
    """Write a compiled pipeline: JSON where the name ends so, else YAML. The old file stays until the new one is whole.

    Raises:
        ConfigError: It cannot be written, or another file than a compiled pipeline is there.
    """
    if path.suffix not in (".yaml", ".yml", ".json") or (path.is_file() and b"deploymentSpec" not in path.read_bytes()):
        raise ConfigError(
            f"--to {path} {'is there, and is no compiled pipeline' if path.is_file() else 'has another ending'}",
            allowed="a new file ending in .yaml or .json, or one that this command has written",
            todo="choose another --to",
        )
    text = json.dumps(spec, indent=1, sort_keys=True) + "\n"
    if path.suffix != ".json":
        text = yaml.dump(spec, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper), sort_keys=True, width=120)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        storage.replace(storage.normalise(path), text.encode())
    except OSError as error:
        raise ConfigError(
            f"--to {path} cannot be written ({error.strerror})",
            allowed="a file ending in .yaml or .json, in a folder that you may write",
            todo="choose another --to",
        ) from None


def _as_it_runs(config: RunConfig, pipeline_image: str, price_usd_per_h: float | None) -> RunConfig:
    """Return the configuration as the stages on Vertex AI are given it: Dataflow shards, and the price is known."""
    resources: dict[str, Any] = {"beam_runner": "dataflow"}
    images = config.cloud.images.model_copy(update={"pipeline": pipeline_image})
    if config.resources.price_usd_per_h is None:
        resources["price_usd_per_h"] = price_usd_per_h
    return config.model_copy(
        update={
            "resources": config.resources.model_copy(update=resources),
            "cloud": config.cloud.model_copy(update={"images": images}),
        }
    )


def _make_documents(config: RunConfig, line: str) -> tuple[dict[str, bytes], dict[str, str]]:
    """Return the stages' sections by URI, and the parameters that point at them."""
    sections = {f"{stage}_config": stage_config(config, stage) for stage in STAGES}
    sections["run_config"] = config.model_dump(mode="json")
    documents, pinned = {}, {}
    for name, values in sections.items():
        content = (json.dumps(values, sort_keys=True, indent=1) + "\n").encode()
        sha256 = hashlib.sha256(content).hexdigest()
        uri = storage.join(line, CONFIGS_FOLDER, f"{sha256[:16]}.json")
        documents[uri] = content
        pinned[name] = pin(uri, sha256)
    return documents, pinned


def _compile(config: RunConfig, containers: Any, parameters: dict[str, Any]) -> dict[str, Any]:
    from kfp import compiler

    from pipelines.graph.vertex import make_pipeline

    with tempfile.TemporaryDirectory(prefix="shardline-") as folder:
        path = Path(folder) / "line.yaml"
        compiler.Compiler().compile(make_pipeline(config, containers), str(path), pipeline_parameters=parameters)
        spec = canonical(yaml.load(path.read_text(encoding="utf-8"), Loader=_loader()))
    assert isinstance(spec, dict)
    return spec


def _loader() -> Any:
    # The C one reads a specification in a tenth of the time, where it was built.
    return getattr(yaml, "CSafeLoader", yaml.SafeLoader)
