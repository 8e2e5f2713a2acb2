"""The gate before the upload: an export that is not proven is not uploaded, unless the configuration allows it."""

from __future__ import annotations

import argparse
from typing import Literal

from contracts import storage
from contracts.artifacts import ExportManifest
from contracts.config.load import read_stage_config
from contracts.errors import ConfigError, DataError, ShardlineError
from contracts.proof import describe_proof, find_unproven, read_verifications, require_proven
from contracts.registration import Registration, find_registration, leave_registration
from contracts.serving import NO_RELEASE, REPOSITORY, image_of
from pipeline_tasks.outputs import write_parameter

UPLOAD: Literal["upload"] = "upload"
REFUSE: Literal["refuse"] = "refuse"


def run(options: argparse.Namespace) -> None:
    """Decide, and give out the word, the Triton repository and the image that serves it.

    Raises:
        ConfigError, DataError: The export or the configuration cannot be read, or was changed: then nobody may decide.
            Or no Triton is known that loads it.
    """
    uri = storage.normalise(options.export)
    document = ExportManifest.load(uri)
    allowed = read_stage_config(options.config, None, None).export.allow_unproven
    # What is damaged is refused whatever is allowed: an error, not a verdict.
    require_proven(uri, document, allow_unproven=True)
    verifications = read_verifications(uri, document)
    unproven = find_unproven(document, verifications)
    verdict = REFUSE if unproven and not allowed else UPLOAD
    if unproven:
        told = "export.allow_unproven is set: it is uploaded all the same" if allowed else "it is not uploaded"
        print(f"gate: {storage.display(uri)} is unproven: {', '.join(unproven)}; {told}")
    else:
        print(f"gate: {describe_proof(document, verifications)}")
    print(f"gate: serves {document.served.in_words()}")
    image = options.serving_image or image_of(document)
    if not image:
        raise ConfigError(
            f"the export in {storage.display(uri)} names no image: {NO_RELEASE}",
            allowed="a plan of a TensorRT that a known release of Triton has, or cloud.images.serving",
            todo="set cloud.images.serving to a Triton image with this TensorRT in your Artifact Registry",
        )
    leave_registration(options.line, options.run_id, Registration(verdict=verdict, unproven=unproven))
    write_parameter(options.write_verdict, verdict)
    write_parameter(options.write_artifact_uri, storage.join(uri, REPOSITORY))
    write_parameter(options.write_image, image)


def run_registered(options: argparse.Namespace) -> None:
    """Write down the operation that has made the model.

    Raises:
        DataError: The gate has left nothing to add it to.
    """
    found = find_registration(options.line, options.run_id)
    if found is None:
        raise DataError(
            f"run {options.run_id} has no word of the gate", allowed="a run whose gate has decided", todo="run it again"
        )
    leave_registration(options.line, options.run_id, found.model_copy(update={"upload": options.upload}))


def run_refused(options: argparse.Namespace) -> None:
    """End the branch in which nothing is uploaded.

    Raises:
        ShardlineError: The gate's word is neither of the two: the run must not end as if it had been one.
    """
    if options.verdict != REFUSE:
        raise ShardlineError(
            f"the gate said {options.verdict!r}, which is neither {UPLOAD!r} nor {REFUSE!r}: nothing is uploaded"
        )
    print("refused: the export is unproven, and no model was uploaded")
    print(
        "  to do: export with export.runtime=tensorrt on the GPU that serves, run `shardline verify` on a GPU of each"
    )
    print("  target, or set export.allow_unproven=true")
