"""Pictures of samples that an evaluation names."""

from __future__ import annotations

from contracts.artifacts import EvaluationReport, ShardManifest
from inspection.run.door import HARM, Door
from inspection.run.pictures import draw
from inspection.run.view import PictureView


def picture_of(
    door: Door, folder_uri: str, manifest: ShardManifest, evaluation: EvaluationReport, place: int, key: str
) -> PictureView | None:
    """Return the picture of a sample; None: it cannot be read, or is another one by now.

    Args:
        door: Of the line.
        folder_uri: Of the shards.
        manifest: Theirs.
        evaluation: That names the sample.
        place: Of the sample in the split.
        key: Of the sample.
    """
    from records.index import key_of
    from records.samples import open_samples

    split = manifest.splits[evaluation.split]
    if manifest.fingerprint != evaluation.shards_fingerprint or not 0 <= place < split.samples:
        return None
    try:
        record = open_samples(manifest, folder_uri)[split.first + place]
        if key_of(record) != key:
            return None
        return draw(door, folder_uri, manifest, [record], evaluation.split)[0]
    except HARM:
        return None
