"""A finished training's folder with random weights: `export_checkpoint.py MODEL SIZE SHARDS FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from safetensors.torch import save_file

from contracts import storage
from contracts.artifacts import MANIFEST_NAME, CheckpointManifest, FileEntry, ShardManifest
from contracts.config import ModelSection
from tests.trainer.tasks.for_tests import image_network
from trainer.model.build import parameters_sha256

WEIGHTS_NAME = "model.safetensors"


def main() -> None:
    """Write it."""
    architecture, size, shards_uri, place = sys.argv[1], int(sys.argv[2]), sys.argv[3], Path(sys.argv[4])
    shards = ShardManifest.load(shards_uri)
    torch.manual_seed(0)
    section = ModelSection.model_validate({"architecture": architecture})
    model = image_network(section, len(shards.classes), size)
    place.mkdir(parents=True)
    state = model.state_dict()
    save_file(state, place / WEIGHTS_NAME)
    manifest = CheckpointManifest(
        fingerprint="0" * 16,
        finished=True,
        step=0,
        position=0,
        epoch=0,
        slot_size=1,
        model=section.model_dump(mode="json"),
        classes=shards.classes,
        data={"image_size": size, "mean": shards.mean, "std": shards.std},
        shards_fingerprint=shards.fingerprint,
        metrics={},
        best_step=0,
        parameters_sha256=parameters_sha256(state),
        environment={},
        files=[FileEntry.of(storage.normalise(place), WEIGHTS_NAME)],
    )
    (place / MANIFEST_NAME).write_bytes(manifest.to_json())


if __name__ == "__main__":
    main()
