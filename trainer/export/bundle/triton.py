"""The hand-over to Triton Inference Server: the model repository, which holds the model that ships.

    triton/README.md               how to serve it
    triton/NAME/config.pbtxt       names, types, shapes, batch sizes, settings of the runtime
    triton/NAME/labels.txt         a class a line, where outputs are classes
    triton/NAME/1/model.onnx       or model.plan: the one file that the gates run, predict.py runs and Triton loads

Here: `model_path`, `write_repository` and `describe_served`, run by trainer/export/making.py. No server has loaded what
is written here: it is made by Triton's own message, and nobody checks it twice.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from contracts.artifacts import Served
from contracts.artifacts.export import NO_SERVER
from contracts.config.stages import Runtime
from contracts.serving import (
    CONFIG_NAME,
    MODEL_FILES,
    NO_RELEASE,
    ONNXRUNTIME_TENSORRT,
    READ_AT,
    RELEASES,
    REPOSITORY,
    TENSORRT,
    VERSION,
    image_for,
    model_name,
)
from trainer.export.bundle.triton_config import (
    LABELS_NAME,
    QUEUE_DELAY_US,
    ServedModel,
    cache_folder,
    config_as_text,
    make_config,
)

README_NAME = "README.md"
_PORTS = ("8000", "8001", "8002")
# What runs an ONNX file in Triton, and how ONNX Runtime calls it.
_PROVIDERS: dict[Runtime, tuple[str, str]] = {
    "onnxruntime_tensorrt": ("TensorrtExecutionProvider", "ONNX Runtime's TensorRT provider"),
    "tensorrt_rtx": ("CUDAExecutionProvider", "ONNX Runtime's CUDA provider"),
}


def model_path(task: str, runtime: Runtime) -> str:
    """Return where the model that ships lies, below the export's folder."""
    return f"{REPOSITORY}/{model_name(task)}/{VERSION}/{MODEL_FILES[runtime]}"


def write_repository(folder: Path, model: ServedModel, *, builder: str, labels: Sequence[str] | None) -> Path:
    """Write the model repository below `folder`/triton, in which the model itself lies; return config.pbtxt's path.

    Args:
        folder: Of the export.
        model: What is served.
        builder: Package and version that built the plan.
        labels: The classes.

    Raises:
        ConfigError: tritonclient is not installed.
    """
    target = folder / REPOSITORY / model.name
    target.mkdir(parents=True, exist_ok=True)
    if labels is not None:
        # Triton ends a label at the end of its line.
        lines = [label.replace("\r", " ").replace("\n", " ") for label in labels]
        (target / LABELS_NAME).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    (target / CONFIG_NAME).write_text(config_as_text(make_config(model)), encoding="utf-8")
    (folder / REPOSITORY / README_NAME).write_text(_readme(model, builder), encoding="utf-8")
    return target / CONFIG_NAME


def describe_served(
    model: ServedModel, *, path: str, config: str, config_sha256: str, ran: str, gpu: str = ""
) -> Served:
    """Return what the manifest says of the model that Triton loads.

    Args:
        model: What is served.
        path: Its file, below the export's folder.
        config: Path of config.pbtxt, below it too.
        config_sha256: Of that file.
        ran: What ran the file in the gates.
        gpu: Compute capability of the GPU that it ran on; empty: on none.
    """
    unproven = []
    # Of a plan its engine's gate says whether it ran, here or in `shardline verify`.
    if model.runtime != TENSORRT:
        provider, words = _PROVIDERS[model.runtime]
        unproven += [] if provider in ran else [words]
        # ONNX Runtime's CPU computes fp16 graphs in fp32.
        if model.precision != "fp32" and "CPUExecutionProvider" in ran:
            unproven.append(f"{model.precision} arithmetic")
    return Served(
        runtime=model.runtime,
        model=path,
        sha256=model.sha256,
        config=config,
        config_sha256=config_sha256,
        graph_level=model.level,
        ran=ran,
        gpu=gpu,
        unproven=[*unproven, NO_SERVER],
    )


def _readme(model: ServedModel, builder: str) -> str:
    file = f"`{model.name}/{VERSION}/{MODEL_FILES[model.runtime]}`"
    what = {
        "tensorrt": f"{file} is the plan that {builder} built. It runs on GPUs of the same compute capability alone.",
        "onnxruntime_tensorrt": f"{file} is an ONNX file in {model.precision}. ONNX Runtime's TensorRT provider builds "
        "a plan of it on the GPU that serves when Triton loads it: the first start takes minutes.",
        "tensorrt_rtx": f"{file} is the ONNX file in {model.precision}, for ONNX Runtime. The engines of TensorRT-RTX "
        "lie outside of this repository: Triton's tensorrt backend does not load them.",
    }[model.runtime]
    image = image_for(builder if model.runtime == TENSORRT else "")
    cached = model.sha256 if model.runtime == ONNXRUNTIME_TENSORRT else ""
    command = "" if image is None else f"    {shlex.join(docker_command(image, '/PATH/TO/triton', sha256=cached))}\n\n"
    inputs = ", ".join(
        f"{name} {spec.dtype} [{', '.join(map(str, spec.shape))}]" for name, spec in model.signature.inputs.items()
    )
    return f"""# Triton model repository

{what} {_describe_image(image, builder)}

{command}Not run: no server has loaded this repository. With `--disable-auto-complete-config` Triton takes
{CONFIG_NAME} as it is.

Inputs: {inputs}; the model card beside this folder says how they are made.
Batches of up to {model.batches[2]}; requests wait up to {QUEUE_DELAY_US} microseconds for one of {model.batches[1]}.

To have proven exports of this line registered in Vertex AI: copy the image to your Artifact Registry, and set
`cloud.images.serving` to the copy with its digest, and `register.upload: true` (docs/vertex.md).
"""


def _describe_image(image: str | None, builder: str) -> str:
    """Return a sentence on how far the image is known to load the model."""
    if image is None:
        known = ", ".join(f"{version} (Triton {release})" for version, release in RELEASES.items())
        return f"{NO_RELEASE}: it was built by {builder}, and a plan loads in no other version; known are {known}"
    if builder.partition(" ")[0] == TENSORRT:
        return f"The release with the {builder} that built the plan; a plan loads in no other."
    return f"Warning: the newest release known on {READ_AT} is taken; no later one was looked at."


def docker_command(image: str, folder: str, *, sha256: str = "") -> list[str]:
    """Return the command that serves a model repository on this machine.

    Args:
        image: Triton's.
        folder: The repository, absolute.
        sha256: Of an ONNX file of which TensorRT builds a plan when it loads: the plan outlives the container.
    """
    command = ["docker", "run", "--rm", "--gpus", "all"]
    command += [part for port in _PORTS for part in ("-p", f"{port}:{port}")]
    command += ["-v", f"{folder}:/models:ro"]
    if sha256:
        name = cache_folder(sha256)
        command += ["-v", f"{name.rpartition('/')[2]}:{name}"]
    return [*command, image, "tritonserver", "--model-repository=/models", "--disable-auto-complete-config"]
