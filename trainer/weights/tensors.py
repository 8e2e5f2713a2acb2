"""The tensors of a source of weights, by name, on the CPU.

What is read is data alone: safetensors files, torch files by its weights_only loader, checkpoints of this tool by their
own loader, folders of transformers by from_pretrained without remote code.
"""

from __future__ import annotations

import copy
import pickle
import re
import struct
import tempfile
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

# What wrappers put before the names of a network's tensors: DDP and torch.compile.
_PREFIXES = ("module.", "_orig_mod.")
# Keys under which files hold the tensors beside other things.
_HOLDERS = ("state_dict", "model", "model_state_dict")
# What loaders raise for a file that is cut short, or no such file.
_UNREADABLE = (
    RuntimeError,
    ValueError,
    LookupError,
    EOFError,
    OSError,
    AttributeError,
    TypeError,
    AssertionError,
    struct.error,
)


def read_tensors(
    source: WeightSource, network: nn.Module, alive: Callable[[], object] = lambda: None
) -> dict[str, torch.Tensor]:
    """Return the tensors of a source by the network's names, where it has such, else by their own.

    Args:
        source: Where they are.
        network: What they are for: of transformers' networks it knows how names were converted.
        alive: Called while files are read: large ones take longer than any limit.

    Raises:
        ModelError: A file is cut short, no such file, or holds more than tensors.
        DataError: A checkpoint is damaged.
    """
    if source.kind == "checkpoint":
        assert source.manifest is not None
        groups = load_groups(source.uri, source.manifest, "model", "ema", on_piece=alive)
        # Averages are the result of a training that keeps them; at the top of its folder they are the network.
        return groups["model"] | groups.get("ema", {})
    with _on_disk(source, alive) as paths:
        if source.config is not None and is_of_transformers(network):
            return _by_transformers(source, next(iter(paths.values())).parent, network)
        tensors: dict[str, torch.Tensor] = {}
        for uri in source.tensor_files:
            if not uri.endswith(".json"):
                tensors |= _read_file(uri, paths[uri])
                alive()
    return tensors


def plain_name(name: str) -> str:
    """Return a tensor's name without what wrappers have put before it."""
    while prefix := next((prefix for prefix in _PREFIXES if name.startswith(prefix)), None):
        name = name.removeprefix(prefix)
    return name


def other_names(network: nn.Module) -> dict[str, list[str]]:
    """Return the names beside its own that a tensor of a transformers network has in files.

    They are those that save_pretrained writes, and both without the prefix of the part below the head.
    """
    if not is_of_transformers(network):
        return {}
    from transformers.core_model_loading import revert_weight_conversion

    state = network.state_dict()
    saved = {id(tensor): name for name, tensor in revert_weight_conversion(network, state).items()}  # type: ignore[arg-type]
    prefix = f"{network.base_model_prefix}."
    found = {}
    for name, tensor in state.items():
        # One that is saved as a part of another, or cut up, has no other name.
        names = [name, saved.get(id(tensor), name)]
        found[name] = [other for one in names for other in (one, one.removeprefix(prefix)) if other != name]
    return found


@contextmanager
def _on_disk(source: WeightSource, alive: Callable[[], object]) -> Iterator[dict[str, Path]]:
    """Give the places of the source's files on this machine, all in one folder, by URI."""
    if storage.is_local(source.uri):
        yield {uri: storage.local_path(uri) for uri in source.files}
        return
    with tempfile.TemporaryDirectory(prefix="shardline-weights-") as name:
        paths = {uri: Path(name) / uri.rpartition("/")[2] for uri in source.files}
        for uri, path in paths.items():
            with path.open("wb") as file:

                def write(piece: bytes, file: BinaryIO = file) -> None:
                    file.write(piece)
                    alive()

                storage.copy_range(uri, 0, storage.info(uri).size, write)
        yield paths


def _read_file(uri: str, path: Path) -> dict[str, torch.Tensor]:
    return _read_safetensors(uri, path) if path.suffix.lower() == SAFETENSORS else tensors_of_torch_file(uri, path)


def _read_safetensors(uri: str, path: Path) -> dict[str, torch.Tensor]:
    from safetensors import SafetensorError, safe_open
    from safetensors.torch import load_file

    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
        tensors = load_file(path)
    except (SafetensorError, *_UNREADABLE) as error:
        raise refused(uri, f"cannot be read as safetensors: {error}", todo="copy or save it again") from error
    if "rows" in metadata:
        raise refused(uri, "is the part of one rank alone", todo="name the folder of its checkpoint")
    return tensors


def tensors_of_torch_file(uri: str, path: Path, *, maps: bool = False) -> dict[str, torch.Tensor]:
    """Return the tensors in a file that torch.save wrote, by the names that they have there.

    Args:
        uri: What the user knows it by.
        path: Where it is.
        maps: Leave the data on the disk until it is read.

    Raises:
        ModelError: It is cut short, no such file, or holds more than tensors.
    """
    try:
        loaded: Any = torch.load(path, map_location="cpu", weights_only=True, mmap=maps)
    except pickle.UnpicklingError as error:
        raise refused(
            uri,
            f"holds more than tensors{_named_by(error)}, which loading could only have by executing code",
            todo="where you trust it, load it yourself and save its state_dict() by safetensors",
        ) from error
    except _UNREADABLE as error:
        raise refused(uri, f"cannot be read: {_first_line(error)}", todo="copy or save it again") from error
    while isinstance(loaded, Mapping) and (key := next((key for key in _HOLDERS if _holds(loaded, key)), None)):
        loaded = loaded[key]
    if not isinstance(loaded, Mapping):
        raise refused(uri, f"holds a {type(loaded).__name__}", todo="save the network's state_dict()")
    tensors = {str(name): value for name, value in loaded.items() if isinstance(value, torch.Tensor)}
    if not tensors:
        keys = ", ".join(str(key) for key in list(loaded)[:5]) or "nothing"
        raise refused(uri, f"holds no tensors by name ({keys})", todo="save the network's state_dict()")
    return tensors


def _holds(loaded: Mapping[Any, Any], key: str) -> bool:
    return isinstance(loaded.get(key), Mapping)


def _first_line(error: Exception) -> str:
    """Return the first sentence of an error: torch's go on with guesses and advice."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines or [type(error).__name__])[0].partition(". ")[0][:200]


def _named_by(error: Exception) -> str:
    """Return the function or class that a pickle asks for; torch's advice, to allow it, must not be followed."""
    found = re.search(r"GLOBAL ([\w.]+)", str(error))
    return f" ({found[1]})" if found else ""


def _by_transformers(source: WeightSource, folder: Path, network: nn.Module) -> dict[str, torch.Tensor]:
    """Return what transformers loads from a folder, under the network's names; the head has the source's classes."""
    from safetensors import SafetensorError
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    config: Any = copy.deepcopy(network.config)
    if source.classes is not None:
        config.num_labels = len(source.classes)
    level = logging.get_verbosity()
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    try:
        # The initial values of what is missing are drawn: they are not used, and must move no generator.
        with torch.random.fork_rng(devices=[]):
            loaded, info = type(network).from_pretrained(  # type: ignore[attr-defined]
                folder,
                config=config,
                local_files_only=True,
                use_safetensors=True,
                trust_remote_code=False,
                ignore_mismatched_sizes=True,
                output_loading_info=True,
                dtype=torch.float32,
            )
    except (SafetensorError, *_UNREADABLE) as error:
        raise refused(
            source.uri, f"is refused by transformers: {error}", todo="save it again by save_pretrained()"
        ) from error
    finally:
        logging.set_verbosity(level)
    state: dict[str, torch.Tensor] = loaded.state_dict()
    for name in info["missing_keys"]:
        state.pop(name, None)
    for name, shape, _ in info["mismatched_keys"]:
        # Kept for the report, with the shape that the file has.
        state[name] = torch.empty(tuple(shape), device="meta")
    for name in info["unexpected_keys"]:
        state[name] = torch.empty(0, device="meta")
    return state
