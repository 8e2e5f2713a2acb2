"""Sources of weights (model.weights): kind, files, classes and content hash.

Reads no tensors and imports no torch, for the launcher.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal

from contracts import storage
from contracts.artifacts import MANIFEST_NAME, CheckpointManifest, ExportManifest
from contracts.config import RunConfig
from contracts.errors import ModelError, UserError
from contracts.previous import PREVIOUS, RUN_NAME, find_training_of_run
from contracts.result import RUN_START_NAME
from records.tokenizer import TOKENIZER_NAME
from trainer.predict.bundle import LABELS_NAME, class_names

TRANSFORMERS_CONFIG = "config.json"
WEIGHTS_NAME = "model.safetensors"
SAFETENSORS = ".safetensors"
TORCH_SUFFIXES = (".pt", ".pth")
ALLOWED = (
    "a folder that transformers saved (config.json and .safetensors files), a .safetensors, .pt or .pth file, or a "
    "run, finished training, checkpoint or export of this tool"
)
# Checkpoint groups: the network, and the moving averages if there are any.
GROUPS = ("model", "ema")
# Field of config.json, and of model.arguments filled from one (`with_saved_arguments`).
MODEL_TYPE = "model_type"
# Fields of config.json that are not architecture arguments, or that the data decides.
_NO_ARGUMENTS = {
    "_name_or_path",
    "architectures",
    "auto_map",
    "dtype",
    "id2label",
    "image_size",
    "label2id",
    "num_labels",
    "output_attentions",
    "output_hidden_states",
    "problem_type",
    "quantization_config",
    "return_dict",
    "torch_dtype",
    "transformers_version",
}
_INDEX_NAME = "model.safetensors.index.json"
_ADAPTER_CONFIG = "adapter_config.json"
# Parts of a network: files of ranks (this tool) and shards (transformers).
_PART = re.compile(r".*-\d{5}-of-\d{5}\.safetensors")


@dataclass(frozen=True)
class WeightSource:
    """An existing source of weights."""

    uri: str
    """URI of a folder or file."""
    kind: Literal["transformers", "file", "checkpoint", "export"]
    files: tuple[str, ...]
    """URIs of the tensor files, and of config.json in a transformers folder."""
    classes: tuple[str, ...] | None = None
    """Classes by row of the head; None: unknown."""
    manifest: CheckpointManifest | None = None
    """Manifest of a checkpoint."""
    config: dict[str, Any] | None = None
    """config.json of a transformers folder."""
    tokenizer_crc32c: str | None = None
    """crc32c of the tokenizer used in training; None: unknown."""
    tokenizer_uri: str = ""
    """Tokenizer file in the same folder; empty if none."""

    @property
    def tensor_files(self) -> list[str]:
        """URIs of the tensor files."""
        return [uri for uri in self.files if not uri.endswith(".json")]

    def sha256(self, alive: Callable[[], object] = lambda: None) -> str:
        """Return the SHA-256 of file sizes, checksums and classes.

        Raises:
            ModelError: A file is missing.
        """
        if self.manifest is not None:
            # Checksums of the manifest; reading verifies them.
            files = [(file.bytes, file.crc32c) for group in GROUPS for file in self.manifest.files_of(group)]
        else:
            files = []
            for uri in self.files:
                try:
                    files.append((storage.info(uri).size, storage.crc32c_of(uri, on_piece=alive)))
                except (FileNotFoundError, IsADirectoryError):
                    raise refused(uri, "is no file", todo="copy the folder whole") from None
        parts: list[Any] = [self.kind, self.classes, files]
        if self.tokenizer_crc32c is not None:
            parts.append({"tokenizer": self.tokenizer_crc32c})
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def find_source(uri: str) -> WeightSource:
    """Return the source that `model.weights` names, a folder or file.

    Raises:
        ModelError: It is missing, has an unsupported type, or is one part of several.
        DataError: A document in it is damaged.
    """
    uri = uri.rstrip("/")
    names = set(storage.list_names(uri))
    name = uri.rpartition("/")[2].lower()
    if names:
        return _find_folder(uri, names)
    if not storage.exists(uri):
        raise refused(uri, "is not there", todo="correct the path or URI")
    if not name.endswith((SAFETENSORS, *TORCH_SUFFIXES)):
        raise refused(uri, "is a file of another kind", todo="save its state_dict() by safetensors or torch.save")
    if _PART.fullmatch(name):
        raise refused(uri, "is one part of several that make a network", todo="name the folder that it is in")
    return WeightSource(uri, "file", (uri,))


def _uses_saved_arguments(config: RunConfig) -> bool:
    """Whether model.arguments are to be filled from config.json of model.weights."""
    model = config.model
    is_own = config.task.is_own or ":" in model.architecture
    return model.weights not in ("", PREVIOUS) and not model.arguments and not is_own


def with_saved_arguments(config: RunConfig, saved: Mapping[str, Any] | None) -> RunConfig:
    """Return a configuration with model.arguments filled from config.json, if it has none.

    They include model_type, by which the builder treats them as a config.json.
    """
    if not saved or not _uses_saved_arguments(config) or saved.get(MODEL_TYPE) != config.model.architecture:
        return config
    arguments = {name: value for name, value in saved.items() if name not in _NO_ARGUMENTS}
    return config.model_copy(update={"model": config.model.model_copy(update={"arguments": arguments})})


def fill_arguments(config: RunConfig, *, online: bool = True) -> RunConfig:
    """Return a configuration with model.arguments filled from config.json of model.weights, if it has none.

    Ignores errors of the weights, which reading them reports. `online`: buckets may be accessed.
    """
    uri = storage.normalise(config.model.weights) if _uses_saved_arguments(config) else ""
    if uri and (storage.is_local(uri) or online):
        with suppress(UserError):
            return with_saved_arguments(config, find_source(uri).config)
    return config


def refused(uri: str, reason: str, *, todo: str) -> ModelError:
    """Return the error for unusable weights."""
    return ModelError(f"model.weights {storage.display(uri)} {reason}", allowed=ALLOWED, todo=todo)


def _find_folder(uri: str, names: set[str]) -> WeightSource:
    if RUN_NAME in names:
        trained = find_training_of_run(uri)
        if trained is None or MANIFEST_NAME not in storage.list_names(trained):
            raise refused(uri, "is a run without a finished training", todo="name another run")
        return _find_by_manifest(trained, names=set())
    if MANIFEST_NAME in names:
        return _find_by_manifest(uri, names)
    if TRANSFORMERS_CONFIG in names:
        return _find_transformers(uri, names)
    if names & {RUN_START_NAME, "checkpoints"}:
        todo = "let it finish, or name the folder of one of its checkpoints (checkpoints/step-...)"
        raise refused(uri, "is not finished", todo=todo)
    raise refused(uri, f"holds none of {RUN_NAME}, {MANIFEST_NAME} and {TRANSFORMERS_CONFIG}", todo="name another one")


def _find_by_manifest(uri: str, names: set[str]) -> WeightSource:
    kind = _read_json(uri, MANIFEST_NAME, dict).get("kind")
    if kind == "checkpoint":
        return _find_checkpoint(uri)
    if kind == "export":
        return _find_export(uri, names)
    raise refused(uri, f"holds a manifest of kind {kind}", todo="name a run, training, checkpoint or export")


def _find_checkpoint(uri: str) -> WeightSource:
    manifest = CheckpointManifest.load(uri)
    files = tuple(file.uri(uri) for group in GROUPS for file in manifest.files_of(group))
    tokenizer = manifest.data.get("tokenizer")
    return WeightSource(
        uri, "checkpoint", files, tuple(manifest.classes), manifest=manifest, tokenizer_crc32c=tokenizer
    )


def _find_export(uri: str, names: set[str]) -> WeightSource:
    if WEIGHTS_NAME not in names:
        raise refused(uri, f"is an export without {WEIGHTS_NAME}", todo="copy the folder whole, or name its training")
    if TRANSFORMERS_CONFIG in names:
        return replace(_find_transformers(uri, names), kind="export")
    has_labels = LABELS_NAME in {file.name for file in ExportManifest.load(uri).files}
    classes = _read_json(uri, LABELS_NAME, list) if has_labels else []
    source = WeightSource(uri, "export", (storage.join(uri, WEIGHTS_NAME),), tuple(class_names(classes)))
    return _with_tokenizer(source, names)


def _find_transformers(uri: str, names: set[str]) -> WeightSource:
    config = _read_json(uri, TRANSFORMERS_CONFIG, dict)
    if _ADAPTER_CONFIG in names:
        todo = "merge it into its model, and save_pretrained() that"
        raise refused(uri, f"holds an adapter ({_ADAPTER_CONFIG})", todo=todo)
    tensors = [WEIGHTS_NAME] if WEIGHTS_NAME in names else _shards(uri, names)
    if not tensors:
        todo = "load it in transformers where you trust it, and save_pretrained() it again"
        raise refused(uri, "has no .safetensors file", todo=todo)
    files = tuple(storage.join(uri, name) for name in (TRANSFORMERS_CONFIG, *tensors))
    return _with_tokenizer(WeightSource(uri, "transformers", files, _classes_of(config), config=config), names)


def _with_tokenizer(source: WeightSource, names: set[str]) -> WeightSource:
    """Add the tokenizer in the source's folder, if any."""
    if TOKENIZER_NAME not in names:
        return source
    uri = storage.join(source.uri, TOKENIZER_NAME)
    return replace(source, tokenizer_crc32c=storage.crc32c_of(uri), tokenizer_uri=uri)


def _shards(uri: str, names: set[str]) -> list[str]:
    """Return the names of transformers' shard files and of their index."""
    if _INDEX_NAME not in names:
        return []
    files = sorted({str(name) for name in _read_json(uri, _INDEX_NAME, dict).get("weight_map", {}).values()})
    if missing := [name for name in files if name not in names]:
        raise refused(uri, f"lacks {', '.join(missing[:3])}, which its index names", todo="copy the folder whole")
    return [_INDEX_NAME, *files]


def _read_json(uri: str, name: str, kind: type[list[Any]] | type[dict[str, Any]]) -> Any:
    try:
        value = json.loads(storage.read_bytes(storage.join(uri, name)))
    except (FileNotFoundError, ValueError) as error:
        raise refused(uri, f"has no {name} that can be read: {error}", todo="save or copy it again") from None
    if not isinstance(value, kind):
        raise refused(uri, f"has a {name} that is no {kind.__name__}", todo="save or copy it again")
    return value


def _classes_of(config: dict[str, Any]) -> tuple[str, ...] | None:
    """Return the classes of config.json by row of the head; None if it has none."""
    labels = config.get("id2label") or {}
    rows = [str(row) for row in range(len(labels))]
    return tuple(str(labels[row]) for row in rows) if rows and labels.keys() == set(rows) else None
