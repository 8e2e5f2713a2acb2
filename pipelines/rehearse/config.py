"""Configuration of a rehearsal: stand-ins for missing cloud settings, and local copies of source and weights.

A configuration with project, bucket and images is rehearsed unchanged: its pipeline has the hash that `shardline
compile` prints. A configuration for a laptop gets stand-ins, which the report lists.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from contracts import storage
from contracts.config import RunConfig
from contracts.config.load import apply_override, parse_config
from contracts.errors import ConfigError
from contracts.machines import find_machine
from contracts.previous import PREVIOUS, RUN_NAME, find_training_of_run
from pipelines.images import ROLES, find_images
from pipelines.manifest_files import MANIFEST_SUFFIXES, find_named_files

PROJECT, REGION = "rehearsal-project", "us-central1"
ROOT, SOURCE, WEIGHTS = "gs://rehearsal-line/lines", "gs://rehearsal-source", "gs://rehearsal-weights"
MACHINE = "n1-standard-4"
_STAND_IN = "us-central1-docker.pkg.dev/rehearsal-project/stand-in"


@dataclass
class RehearsalConfig:
    """A configuration for a rehearsal."""

    config: RunConfig
    stand_ins: list[str] = field(default_factory=list)
    """Settings that were filled in, as `KEY = VALUE`."""
    buckets: set[str] = field(default_factory=set)
    """Buckets to create."""
    source: Path = Path()
    """Local data to copy to sharding.source, below the folder of the bucket server."""
    weights: Path | None = None
    """Local weights to copy to model.weights; None: none."""

    def copy_weights(self, buckets_folder: Path) -> None:
        """Copy the initial weights into the folder of the bucket server, before it starts."""
        if self.weights is None:
            return
        target = buckets_folder / self.config.model.weights.removeprefix("gs://")
        files = [path for path in (self.weights, *self.weights.rglob("*")) if path.is_file()]
        _require_room(buckets_folder, files)
        _make_private(target.parent)
        if self.weights.is_dir():
            shutil.copytree(self.weights, target, dirs_exist_ok=True)
        else:
            shutil.copyfile(self.weights, target)

    def copy_source(self, buckets_folder: Path, most: int | None = None) -> tuple[int, int]:
        """Copy the source, or a manifest and its files, into the folder of the bucket server, before it starts.

        Copies up to `most` files, spread evenly over the source's folders. Returns the numbers of copied and of all
        files.

        Raises:
            ConfigError: `most` is set for a manifest, or the disk has no room.
        """
        bucket, _, path = self.config.sharding.source.removeprefix("gs://").partition("/")
        target = buckets_folder / bucket / path
        root = self.source
        if root.is_file():
            if most is not None:
                raise ConfigError(
                    f"--samples {most} of the manifest {root}",
                    allowed="--samples with a source that is a folder of class folders",
                    todo="leave --samples out, or give a shorter manifest as --source",
                )
            names = find_named_files(root, self.config.sharding)
            root, target, files = root.parent, target.parent, [root, *(root.parent / name for name in names)]
        else:
            files = sorted(path for path in root.rglob("*") if path.is_file())
        chosen = files if most is None else _spread(files, most)
        _require_room(buckets_folder, chosen)
        for file in chosen:
            copy = target / file.relative_to(root)
            _make_private(copy.parent)
            shutil.copyfile(file, copy)
        return len(chosen), len(files)


def _require_room(folder: Path, files: list[Path]) -> None:
    """Raise ConfigError if the disk has not enough free space for copies of files."""
    _make_private(folder)
    num_bytes, free = sum(file.stat().st_size for file in files), shutil.disk_usage(folder).free
    if num_bytes > free:
        raise ConfigError(
            f"the files to copy have {num_bytes / 1e9:.1f} GB, and the disk of {folder} has {free / 1e9:.1f} GB left",
            allowed="a source and weights that fit: they are copied into the rehearsal's buckets",
            todo="give --samples N, a smaller --source or --weights, or a folder of a larger disk by --keep or TMPDIR",
        )


def _make_private(folder: Path) -> None:
    """Create a folder and its missing parents with mode 0700: they contain the user's data."""
    for parent in reversed([folder, *folder.parents]):
        if not parent.exists():
            parent.mkdir(mode=0o700)


def _spread(files: list[Path], most: int) -> list[Path]:
    """Return about `most` files: from each folder its share, evenly spaced, at least one."""
    folders: dict[Path, list[Path]] = {}
    for path in files:
        folders.setdefault(path.parent, []).append(path)
    chosen = []
    for inside in folders.values():
        share = min(len(inside), max(1, most * len(inside) // max(1, len(files))))
        chosen += [inside[place * len(inside) // share] for place in range(share)]
    return chosen


def prepare(config: RunConfig, source: Path | None, weights: Path | None = None) -> RehearsalConfig:
    """Fill in missing cloud settings; `source` and `weights` replace remote ones.

    Raises:
        ConfigError: There is nothing local to copy, or a machine type is unknown.
    """
    local, start = _find_source(config, source), _find_weights(config, weights)
    config, unbuilt = find_images(config)
    values = {"cloud.project": "" if config.cloud.project else PROJECT}
    values["cloud.region"] = "" if config.cloud.region else REGION
    # A rehearsal pulls no images.
    lacking: list[str] = [role for role in ROLES if any(text.startswith(f"cloud.images.{role} ") for text in unbuilt)]
    lacking += ["serving"] if config.register.upload and not config.cloud.images.serving else []
    for role in lacking:
        values[f"cloud.images.{role}"] = f"{_STAND_IN}/{role}@sha256:{hashlib.sha256(role.encode()).hexdigest()}"
    values["run.root"] = "" if config.run.root.startswith("gs://") else ROOT
    values["resources.machine.type"] = "" if config.resources.machine.type else MACHINE
    if not config.sharding.source.startswith("gs://"):
        values["sharding.source"] = f"{SOURCE}/{local.name}"
    if start is not None and not config.model.weights.startswith("gs://"):
        values["model.weights"] = f"{WEIGHTS}/{start.name}"
    sections = config.model_dump(mode="json")
    stand_ins = {key: value for key, value in values.items() if value}
    for key, value in stand_ins.items():
        apply_override(sections, f"{key}={json.dumps(value)}")
    filled = parse_config(sections, where="rehearsal")
    find_machine(filled.resources.machine)
    uris = [filled.run.root, filled.sharding.source, *([] if start is None else [filled.model.weights])]
    buckets = {uri.removeprefix("gs://").partition("/")[0] for uri in uris}
    return RehearsalConfig(filled, [f"{key} = {value}" for key, value in stand_ins.items()], buckets, local, start)


def _find_source(config: RunConfig, source: Path | None) -> Path:
    configured = config.sharding.source
    if source is not None:
        path, label = source, f"--source {source}"
    elif configured and "://" not in configured:
        path, label = Path(configured), f"sharding.source {configured}"
    elif configured.startswith("file://"):
        path, label = storage.local_path(configured), f"sharding.source {configured}"
    else:
        raise ConfigError(
            f"sharding.source {configured or '(unset)'}: a rehearsal has no access to the cloud",
            allowed="a folder or a manifest of this machine",
            todo="give --source PATH with some of the data: a bucket of this machine serves it at that URI",
        )
    if path.is_dir() and configured.lower().endswith(MANIFEST_SUFFIXES):
        path, label = path / Path(configured).name, f"{Path(configured).name}, which sharding.source names, in {label}"
    if not path.exists():
        raise ConfigError(f"{label} does not exist", allowed="a folder or a manifest", todo="check the path")
    return path


def _find_weights(config: RunConfig, weights: Path | None) -> Path | None:
    """Return the local folder or file of the initial weights; for a run, the folder of its training."""
    configured = config.model.weights
    if configured in ("", PREVIOUS):
        if weights is not None:
            raise ConfigError(
                f"--weights {weights}, and model.weights is {configured or 'not set'}",
                allowed="--weights with a model.weights that names a folder or a file",
                todo="leave --weights out, or set model.weights",
            )
        return None
    if weights is None and "://" in configured and not storage.is_local(configured):
        raise ConfigError(
            f"model.weights {configured}: a rehearsal has no access to the cloud",
            allowed="a folder or a file of this machine",
            todo="give --weights PATH with a copy: a bucket of this machine serves it at that URI",
        )
    path = weights or storage.local_path(storage.normalise(configured))
    if not path.exists():
        raise ConfigError(f"weights {path} do not exist", allowed="a folder or a file", todo="check the path")
    if (path / RUN_NAME).exists() and (trained := find_training_of_run(storage.normalise(path))) is not None:
        return storage.local_path(trained)
    return path
