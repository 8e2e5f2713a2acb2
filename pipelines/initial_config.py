"""`shardline init`: a first configuration for Google Cloud, with the user's names and no placeholder of any kind.

What it asks for works in a project without a GPU quota: one machine without a GPU and a small network, which the
file says how to replace. Asks nobody, reads no data.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from contracts.config.task import TASKS
from contracts.errors import ConfigError
from contracts.machines import find_machine
from contracts.resolve import load_config
from pipelines.rules.cloud_names import check_name
from pipelines.rules.names import MAX_NAME

MACHINE = "n1-standard-4"
_IMAGES = ("image_classification", "image_multilabel")
# Where the data is looked for if nothing is said: folders of classes, or a table.
_SOURCES = {
    "image_classification": "raw/images",
    "image_multilabel": "raw/labels.csv",
    "text_classification": "raw/texts.csv",
}
# What the comment beside the source says of it.
_FORMS = {
    "image_classification": "one folder of images per class, or a table with the columns uri and label",
    "image_multilabel": "a table with the columns uri and label, a list of labels in each row",
    "text_classification": "a table with the columns text and label",
}
_FIELDS = {
    "text_classification": """\
  fields:
    text: {column: text, kind: text}
    label: {column: label, kind: class}
  tokenizer: {}  # trained on the texts
""",
}
_SMALL_IMAGES = """\
data: {image_size: 32}  # a small network, for a machine without a GPU; README.md has a larger one
model:
  architecture: resnet
  arguments: {layer_type: basic, embedding_size: 32, hidden_sizes: [32, 64], depths: [1, 1]}
train: {global_batch_size: 64, epochs: 12, learning_rate: 3.0e-3}
"""
_LARGE_IMAGES = """\
data: {image_size: 224, crop: random_resized, horizontal_flip: true}
model:
  architecture: resnet
  arguments: {layer_type: basic, depths: [2, 2, 2, 2], hidden_sizes: [64, 128, 256, 512]}
train: {global_batch_size: 128, epochs: 30, precision: bf16}
"""
_TEXTS = """\
model:
  architecture: bert
  arguments: {hidden_size: 128, num_hidden_layers: 2, num_attention_heads: 2, intermediate_size: 256}
train: {global_batch_size: 32, epochs: 10, learning_rate: 1.0e-3}
"""


@dataclass(frozen=True)
class Names:
    """What a user gives; "" stands for what is derived."""

    project: str
    bucket: str
    region: str = "us-central1"
    task: str = "image_classification"
    source: str = ""
    """Path, or URI in a bucket."""
    name: str = ""
    """Of the line."""
    machine: str = MACHINE


def write_initial(names: Names, path: Path | None) -> Path:
    """Write a configuration, and return where.

    Args:
        names: What it is made of.
        path: The file; None: NAME.yaml in the current folder.

    Raises:
        ConfigError: A name is one that Google would refuse, or the file is there.
    """
    text, name = make_initial(names)
    target = path or Path(f"{name}.yaml")
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        partial.write_text(text, encoding="utf-8")
        load_config(partial)
        # Create-only, and whole or not at all.
        target.hardlink_to(partial)
    except FileExistsError:
        raise ConfigError(
            f"{target} is there",
            allowed="a file that is not there: nothing is overwritten",
            todo="give --output another name, or edit the file",
        ) from None
    except OSError as error:
        raise ConfigError(
            f"{target} cannot be written: {error.strerror}", allowed="a file in a folder of yours", todo="give --output"
        ) from None
    finally:
        partial.unlink(missing_ok=True)
    return target


def make_initial(names: Names) -> tuple[str, str]:
    """Return the text of a configuration, and the name of its line.

    Raises:
        ConfigError: A name is one that Google would refuse, a task or a machine is none.
    """
    _check(names)
    task, source = names.task, names.source or _SOURCES[names.task]
    name = names.name or _name_after(source)
    gpus = find_machine_of(names.machine)
    is_image = task in _IMAGES
    body = (_LARGE_IMAGES if gpus else _SMALL_IMAGES) if is_image else _TEXTS
    note = "" if gpus else "  # no GPU: new projects have a quota for none; with it e.g. g2-standard-8"
    uploaded = "" if "://" in source else "; `shardline submit` uploads it"
    account = f"{names.project}.iam.gserviceaccount.com"
    text = f"""\
# Written by `shardline init`. Every key: docs/configuration.md, or `shardline config show --describe KEY`.
run: {{name: {name}, root: gs://{names.bucket}/lines}}
{"" if task == "image_classification" else f"task: {{name: {task}}}{chr(10)}"}\
sharding:
  # {_FORMS[task]}{uploaded}
  source: {source}
{_FIELDS.get(task, "")}{body}\
resources:
  machine: {{type: {names.machine}}}{note}
  strategy: SPOT
cloud:
  project: {names.project}
  region: {names.region}
  service_account: shardline-runner@{account}
  images:
    repository: {names.region}-docker.pkg.dev/{names.project}/shardline
    build_account: shardline-build@{account}
"""
    return text, name


def find_machine_of(machine_type: str) -> int:
    """Return the number of GPUs that a machine type brings.

    Raises:
        ConfigError: There is no such type, or its GPUs are to be chosen.
    """
    from contracts.config import MachineSection

    return find_machine(MachineSection(type=machine_type)).gpus


def _check(names: Names) -> None:
    for problem in (
        *check_name("project", "--project", names.project),
        *check_name("bucket", "--bucket", names.bucket.removeprefix("gs://")),
        *check_name("region", "--region", names.region),
    ):
        raise ConfigError(problem.given, allowed=problem.allowed, todo=problem.todo)
    if names.bucket.startswith("gs://"):
        raise ConfigError(f"--bucket {names.bucket}", allowed="the bucket's name alone", todo="leave gs:// out")
    if names.task not in TASKS:
        raise ConfigError(
            f"--task {names.task}",
            allowed=", ".join(TASKS),
            todo="choose one of them; a task of your own is set in the file (docs/tasks.md)",
        )
    if "://" in names.source and not names.source.startswith("gs://"):
        raise ConfigError(f"--source {names.source}", allowed="a path, or gs://BUCKET/FOLDER", todo="correct it")
    # YAML would read them as something else, or as a comment.
    if re.search(r"^\s|\s$|[\n\"'#:{}\[\],&*!|>%@`]", re.sub(r"^gs://", "", names.source)):
        raise ConfigError(
            f"--source {names.source!r}",
            allowed="a path or URI without quotes, braces, ':' and '#'",
            todo="rename the folder, or write the path into the file yourself",
        )
    if names.name and (not re.fullmatch(r"[a-z](?:[a-z0-9-]*[a-z0-9])?", names.name) or len(names.name) > MAX_NAME):
        raise ConfigError(
            f"--name {names.name}",
            allowed=f"a lower-case letter, then up to {MAX_NAME - 1} letters, digits and '-', the last no '-'",
            todo="jobs are named by it: choose another",
        )


def _name_after(source: str) -> str:
    """Return a line's name after its source: raw/My Photos -> my-photos."""
    stem = source.rstrip("/").rpartition("/")[2].partition(".")[0].lower()
    name = re.sub(r"[^a-z0-9]+", "-", stem).strip("-")[:MAX_NAME].strip("-")
    return name if re.match(r"[a-z]", name) else f"line-{name}".strip("-")[:MAX_NAME].strip("-")
