"""`shardline compile`: compiles a configuration to the pipeline for Vertex AI and the inputs of its submission.

Machine types are part of the pipeline. Region, strategy, time-outs and the configuration keys of each stage are
parameters, so a run in another region has the same specification.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from contracts import storage
from contracts.canonical import canonical, canonical_hash
from contracts.config import SPEED_FIELDS, STAGES, RunConfig
from contracts.config.load import stage_config
from contracts.errors import ConfigError
from contracts.own_code import pin_code

if TYPE_CHECKING:
    from pipelines.plan import Plan

MAX_PARAMETER = 10_000
_FLEX_START_PENDING_S = 86400.0


@dataclass(frozen=True)
class CompiledLine:
    """A pipeline and its first submission."""

    spec: dict[str, Any]
    """PipelineSpec as JSON values, whole numbers as integers; `hash` is its name."""
    parameters: dict[str, Any]
    """Values for a run in `cloud.region`; also the specification's defaults."""
    documents: dict[str, bytes]
    """By URI: own code, which must be there before a submission; named by its content."""

    @property
    def hash(self) -> str:
        """Hash of the specification, which is its name."""
        return canonical_hash(self.spec)


def compile_line(config: RunConfig, plan: Plan) -> CompiledLine:
    """Compile the line of a configuration.

    Args:
        config: The resolved configuration, with absolute paths and both images (pipelines/images.py).
        plan: Its plan (pipelines/plan.py), without problems.
    """
    line = storage.join(storage.normalise(config.run.root), config.run.name)
    code = pin_code(config, line)
    config = code.config
    parameters = {
        "project": config.cloud.project,
        "region": config.cloud.region,
        "strategy": config.resources.strategy,
        "max_wait": f"{config.resources.max_pending_s or _FLEX_START_PENDING_S:.0f}s",
        "timeout": f"{int(config.resources.timeout_hours * 3600)}s",
        # resources.max_cost_usd limits training only.
        "train_timeout": f"{plan.cost.timeout_s}s",
        # On Vertex AI, sharding runs on Dataflow.
        **stage_parameters(
            config.with_keys(resources={"beam_runner": "dataflow", "price_usd_per_h": plan.cost.price_usd_per_h})
        ),
    }
    return CompiledLine(_compile(config, parameters), parameters, code.documents())


def stage_parameters(config: RunConfig) -> dict[str, str]:
    """Return the pipeline's configuration parameters: the keys that each component reads, as JSON.

    Raises:
        ConfigError: A text is longer than a parameter may be.
    """
    sections = {stage: stage_config(config, stage) for stage in (*STAGES, "register")}
    # KFP's cache keeps the profile when only other keys, such as the learning rate, change.
    profile_keys = {*SPEED_FIELDS, "momentum", "epochs", "max_steps"}
    sections["profile"]["train"] = {name: sections["profile"]["train"][name] for name in sorted(profile_keys)}
    sections["run"] = config.model_dump(mode="json", exclude_defaults=True)
    texts = {f"{name}_config": json.dumps(values, sort_keys=True) for name, values in sections.items()}
    for name, text in texts.items():
        if len(text) > MAX_PARAMETER:
            sizes = {
                f"{section}.{key}": len(json.dumps(value))
                for section, keys in sections[name.removesuffix("_config")].items()
                for key, value in keys.items()
            }
            raise ConfigError(
                f"the parameter {name} has {len(text):,} characters",
                allowed=f"{MAX_PARAMETER:,}: a job's payload holds it once per worker pool",
                todo=f"shorten {max(sizes, key=lambda key: sizes[key])}, which is the longest value in it",
            )
    return texts


def write_spec(spec: dict[str, Any], path: Path) -> None:
    """Write a compiled pipeline as JSON (for .json) or YAML, atomically.

    Raises:
        ConfigError: It cannot be written, or would overwrite a file that is not a compiled pipeline.
    """
    require_target(path)
    text = json.dumps(spec, indent=1, sort_keys=True) + "\n"
    if path.suffix != ".json":
        text = yaml.dump(spec, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper), sort_keys=True, width=120)
    write_file(text.encode(), path)


def write_file(content: bytes, path: Path) -> None:
    """Write a file atomically.

    Raises:
        ConfigError: It cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        storage.replace(storage.normalise(path), content)
    except OSError as error:
        raise _refused(path, error.strerror) from None


def require_target(path: Path, endings: Sequence[str] = (".yaml", ".yml", ".json")) -> None:
    """Check that a compiled pipeline may be written to a path.

    Raises:
        ConfigError: Its ending is not allowed, or an existing file is unreadable or not a compiled pipeline.
    """
    if path.suffix not in endings:
        raise _refused(path, "another ending", endings)
    try:
        if path.is_file() and b"deploymentSpec" not in path.read_bytes():
            raise _refused(path, "it is not a compiled pipeline")
    except OSError as error:
        raise _refused(path, error.strerror) from None


def _refused(path: Path, reason: str | None, endings: Sequence[str] = (".yaml", ".json")) -> ConfigError:
    names = " or ".join(endings)
    return ConfigError(
        f"--to {path} cannot be written ({reason})",
        allowed=f"a file ending in {names}, new or written by this command, in a folder that you may write",
        todo="choose another --to",
    )


def _compile(config: RunConfig, parameters: dict[str, Any]) -> dict[str, Any]:
    from kfp import compiler

    from pipelines.pipeline import make_pipeline

    # PyYAML's C loader is ten times as fast; not every installation has it.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    with tempfile.TemporaryDirectory(prefix="shardline-") as folder:
        path = Path(folder) / "line.yaml"
        compiler.Compiler().compile(make_pipeline(config), str(path), pipeline_parameters=parameters)
        spec = canonical(yaml.load(path.read_text(encoding="utf-8"), Loader=loader))
    assert isinstance(spec, dict)
    return spec
