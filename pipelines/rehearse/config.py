"""What a configuration becomes for a rehearsal: the same, with what it lacks filled in and its source copied.

A configuration that names a project, a bucket and images is rehearsed as it is: its pipeline has the hash that
`shardline compile` prints. One for a laptop gets stand-ins, and the report says which.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from contracts import storage
from contracts.config import RunConfig
from contracts.errors import ConfigError
from contracts.machines import find_machine
from contracts.previous import PREVIOUS, RUN_NAME, find_training_of_run
from pipelines.images import find_images
from pipelines.manifest_files import MANIFEST_SUFFIXES, find_named_files

PROJECT, REGION = "rehearsal-project", "us-central1"
ROOT, SOURCE, WEIGHTS = "gs://rehearsal-line/lines", "gs://rehearsal-source", "gs://rehearsal-weights"
MACHINE = "n1-standard-4"
_SERVING = f"us-central1-docker.pkg.dev/rehearsal-project/stand-in/triton@sha256:{64 * '1'}"


@dataclass
class Prepared:
    """A configuration that can be rehearsed."""

    config: RunConfig
    stand_ins: list[str] = field(default_factory=list)
    """What was filled in, in words."""
    buckets: set[str] = field(default_factory=set)
    """Buckets that there must be."""
    source: Path = Path()
    """What is to be copied to sharding.source, below the folder of the bucket server."""
    weights: Path | None = None
    """What is to be copied to model.weights likewise; None: nothing."""

    def copy_weights(self, buckets_folder: Path) -> None:
        """Copy the weights to start from into the folder that the bucket server is about to serve."""
        if self.weights is None:
            return
        target = buckets_folder / self.config.model.weights.removeprefix("gs://")
        _make_private(target.parent)
        if self.weights.is_dir():
            shutil.copytree(self.weights, target, dirs_exist_ok=True)
        else:
            shutil.copyfile(self.weights, target)

    def copy_source(self, buckets_folder: Path, most: int | None = None) -> tuple[int, int]:
        """Copy the source into the folder that the bucket server is about to serve: of a manifest what it names.

        Args:
            buckets_folder: That folder.
            most: Files to copy at most, evenly over each folder of the source; None: all.

        Returns:
            Files that were copied, and files that there are.

        Raises:
            ConfigError: A part of a manifest's files was asked for.
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
            named = find_named_files(root, self.config.sharding)
            root, target, files = root.parent, target.parent, [root, *(root.parent / name for name in named)]
        else:
            files = sorted(path for path in root.rglob("*") if path.is_file())
        chosen = files if most is None else _spread(files, most)
        for file in chosen:
            copy = target / file.relative_to(root)
            _make_private(copy.parent)
            shutil.copyfile(file, copy)
        return len(chosen), len(files)


def _make_private(folder: Path) -> None:
    """Make a folder and those above it that are not there, for this user alone: they hold the user's data."""
    for each in reversed([folder, *folder.parents]):
        if not each.exists():
            each.mkdir(mode=0o700)


def _spread(files: list[Path], most: int) -> list[Path]:
    """Return up to `most` of the files: of each folder its share, evenly over it, and one at least."""
    folders: dict[Path, list[Path]] = {}
    for path in files:
        folders.setdefault(path.parent, []).append(path)
    chosen = []
    for inside in folders.values():
        share = min(len(inside), max(1, most * len(inside) // max(1, len(files))))
        chosen += [inside[place * len(inside) // share] for place in range(share)]
    return chosen


def prepare(config: RunConfig, source: Path | None, weights: Path | None = None) -> Prepared:
    """Fill in what a rehearsal needs.

    Args:
        config: The resolved configuration, with absolute paths.
        source: A local folder or manifest that stands for the source; None: sharding.source itself is one.
        weights: A local folder or file that stands for model.weights; None: model.weights itself is one, if it is set.

    Raises:
        ConfigError: There is nothing local to copy, or a machine is none.
    """
    stand_ins: list[str] = []
    cloud: dict[str, Any] = {}
    for name, value in (("project", PROJECT), ("region", REGION)):
        if not getattr(config.cloud, name):
            cloud[name] = value
            stand_ins.append(f"cloud.{name} = {value}")
    cloud["images"] = _images(config, stand_ins)
    run, resources, sharding, model = {}, {}, {}, {}
    if not config.run.root.startswith("gs://"):
        run["root"] = ROOT
        stand_ins.append(f"run.root = {ROOT}")
    if not config.resources.machine.type:
        resources["machine"] = config.resources.machine.model_copy(update={"type": MACHINE})
        stand_ins.append(f"resources.machine.type = {MACHINE}")
    local = _find_source(config, source)
    if not config.sharding.source.startswith("gs://"):
        sharding["source"] = f"{SOURCE}/{local.name}"
        stand_ins.append(f"sharding.source = {sharding['source']}")
    start = _find_weights(config, weights)
    if start is not None and not config.model.weights.startswith("gs://"):
        model["weights"] = f"{WEIGHTS}/{start.name}"
        stand_ins.append(f"model.weights = {model['weights']}")
    made = config.model_copy(
        update={
            "cloud": config.cloud.model_copy(update=cloud),
            "run": config.run.model_copy(update=run),
            "resources": config.resources.model_copy(update=resources),
            "sharding": config.sharding.model_copy(update=sharding),
            "model": config.model.model_copy(update=model),
        }
    )
    find_machine(made.resources.machine)
    uris = [made.run.root, made.sharding.source, *([] if start is None else [made.model.weights])]
    return Prepared(made, stand_ins, {uri.removeprefix("gs://").partition("/")[0] for uri in uris}, local, start)


def _images(config: RunConfig, stand_ins: list[str]) -> Any:
    """Return the images: nothing is pulled here, and a placeholder does."""
    found, missing = find_images(config)
    stand_ins += missing
    images = found.cloud.images
    if config.register.upload and not images.serving:
        images = images.model_copy(update={"serving": _SERVING})
        stand_ins.append(f"cloud.images.serving = {_SERVING}")
    return images


def _find_source(config: RunConfig, source: Path | None) -> Path:
    given = config.sharding.source
    if source is not None:
        found, said = source, f"--source {source}"
    elif given and "://" not in given:
        found, said = Path(given), f"sharding.source {given}"
    elif given.startswith("file://"):
        found, said = storage.local_path(given), f"sharding.source {given}"
    else:
        raise ConfigError(
            f"sharding.source {given or '(unset)'}: a rehearsal reaches no cloud",
            allowed="a folder or a manifest of this machine",
            todo="give --source PATH with some of the data: a bucket of this machine serves it at that URI",
        )
    if found.is_dir() and given.lower().endswith(MANIFEST_SUFFIXES):
        # The folder of the manifest and what it names.
        found, said = found / Path(given).name, f"{Path(given).name}, which sharding.source names, in {said}"
    if not found.exists():
        raise ConfigError(f"{said} does not exist", allowed="a folder or a manifest", todo="check the path")
    return found


def _find_weights(config: RunConfig, weights: Path | None) -> Path | None:
    """Return the folder or file of the weights to start from; of a run its training's folder."""
    given = config.model.weights
    if given in ("", PREVIOUS):
        return None
    if weights is None and "://" in given and not storage.is_local(given):
        raise ConfigError(
            f"model.weights {given}: a rehearsal reaches no cloud",
            allowed="a folder or a file of this machine",
            todo="give --weights PATH with a copy: a bucket of this machine serves it at that URI",
        )
    found = weights or storage.local_path(storage.normalise(given))
    if not found.exists():
        raise ConfigError(f"weights {found} do not exist", allowed="a folder or a file", todo="check the path")
    if (found / RUN_NAME).exists() and (trained := find_training_of_run(storage.normalise(found))) is not None:
        return storage.local_path(trained)
    return found
