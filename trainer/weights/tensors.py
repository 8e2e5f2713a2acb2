"""Read the tensors of a source of weights by name, on the CPU.

No code is executed: reads safetensors files, torch files with weights_only, and checkpoints of this tool. transformers
converts tensor names for its networks, without remote code.
"""

from __future__ import annotations

import copy
import pickle
import re
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import nn

from contracts import storage
from trainer.checkpoint.loading import load_groups
from trainer.model.build import is_of_transformers
from trainer.weights.source import SAFETENSORS, WeightSource, refused

# Prefixes that DDP and torch.compile add to all tensor names.
_PREFIXES = ("module.", "_orig_mod.")
# Keys of the state dict in files with other content.
_HOLDERS = ("state_dict", "model")


def read_tensors(
    source: WeightSource, network: nn.Module, alive: Callable[[], object] = lambda: None
) -> dict[str, torch.Tensor]:
    """Return the tensors of a source, with names converted to the network's.

    Tensors whose shape differs from the network's may be on the meta device. `alive` is called while reading.

    Raises:
        ModelError: A file is truncated, has another format, or has more than tensors.
        DataError: A checkpoint is damaged.
    """
    if source.kind == "checkpoint":
        assert source.manifest is not None
        groups = load_groups(source.uri, source.manifest, "model", "ema", on_piece=alive)
        # Moving averages, if any, are the result of a training.
        return groups["model"] | groups.get("ema", {})
    tensors: dict[str, torch.Tensor] = {}
    with _on_disk(source, alive) as paths:
        for uri, path in paths.items():
            is_safetensors = path.suffix.lower() == SAFETENSORS
            tensors |= _read_safetensors(uri, path) if is_safetensors else _read_torch_file(uri, path)
            alive()
        names = set(network.state_dict())
        while prefix := next((prefix for prefix in _PREFIXES if all(name.startswith(prefix) for name in tensors)), ""):
            if not tensors or names & tensors.keys():
                break
            tensors = {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
        return _convert(source, tensors, network) if is_of_transformers(network) else tensors


@contextmanager
def _on_disk(source: WeightSource, alive: Callable[[], object]) -> Iterator[dict[str, Path]]:
    """Yield local paths of the source's tensor files by URI."""
    uris = source.tensor_files
    if storage.is_local(source.uri):
        yield {uri: storage.local_path(uri) for uri in uris}
        return
    with tempfile.TemporaryDirectory(prefix="shardline-weights-") as name:
        paths = {uri: Path(name) / uri.rpartition("/")[2] for uri in uris}
        for uri, path in paths.items():
            with path.open("wb") as file:

                def write(piece: bytes, file: BinaryIO = file) -> None:
                    file.write(piece)
                    alive()

                storage.copy_range(uri, 0, storage.info(uri).size, write)
        yield paths


def _read_safetensors(uri: str, path: Path) -> dict[str, torch.Tensor]:
    from safetensors import safe_open

    try:
        with safe_open(path, framework="pt") as file:
            is_part = "part" in (file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
    except Exception as error:  # safetensors raises various errors for truncated files
        raise refused(uri, f"cannot be read as safetensors: {error}", todo="copy or save it again") from error
    if is_part:
        raise refused(uri, "is the part of one rank alone", todo="name the folder of its checkpoint")
    return tensors


def _read_torch_file(uri: str, path: Path) -> dict[str, torch.Tensor]:
    """Return the tensors by name in a file of torch.save."""
    try:
        # mmap needs the zip format; older files are read whole.
        loaded: Any = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except pickle.UnpicklingError as error:
        # Omit torch's advice to allow the function.
        function = re.search(r"GLOBAL ([\w.]+)", str(error))
        raise refused(
            uri,
            f"holds more than tensors{f' ({function[1]})' if function else ''}, which loading could only have by "
            "executing code",
            todo="where you trust it, load it yourself and save its state_dict() by safetensors",
        ) from error
    except Exception as error:  # torch raises various errors for truncated files
        # Only the first sentence: torch adds guesses and advice.
        reason = str(error).strip().partition("\n")[0].partition(". ")[0][:200]
        raise refused(uri, f"cannot be read: {reason or type(error).__name__}", todo="copy or save it again") from error
    entries = loaded if isinstance(loaded, Mapping) else {}
    while key := next((key for key in _HOLDERS if isinstance(entries.get(key), Mapping)), None):
        entries = entries[key]
    tensors = {str(name): value for name, value in entries.items() if isinstance(value, torch.Tensor)}
    if not tensors:
        raise refused(uri, "holds no tensors by name", todo="save the network's state_dict()")
    return tensors


def _convert(source: WeightSource, tensors: dict[str, torch.Tensor], network: nn.Module) -> dict[str, torch.Tensor]:
    """Return tensors renamed for a transformers network by from_pretrained, with a head of the source's classes."""
    from transformers.utils import logging

    config: Any = copy.deepcopy(network.config)
    if source.classes is not None:
        config.num_labels = len(source.classes)
    level = logging.get_verbosity()
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        # Missing tensors are initialised and discarded: keep the generator's state.
        with torch.random.fork_rng(devices=[]):
            loaded, info = type(network).from_pretrained(  # type: ignore[attr-defined]
                None,
                config=config,
                state_dict=tensors,
                ignore_mismatched_sizes=True,
                output_loading_info=True,
                dtype=torch.float32,
            )
    except Exception as error:  # transformers raises various errors for mismatched shapes
        raise refused(
            source.uri, f"is refused by transformers: {error}", todo="save it again by save_pretrained()"
        ) from error
    finally:
        logging.set_verbosity(level)
    state: dict[str, torch.Tensor] = loaded.state_dict()
    for name in info["missing_keys"]:
        state.pop(name, None)
    for name, shape, _ in info["mismatched_keys"]:
        # For the report, with the file's shape.
        state[name] = torch.empty(tuple(shape), device="meta")
    for name in info["unexpected_keys"]:
        state[name] = torch.empty(0, device="meta")
    return state
