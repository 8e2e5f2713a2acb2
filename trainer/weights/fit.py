"""Fit of weights and a network by names and shapes, without reading tensors: for checks before any stage.

What can be read is the header of safetensors files, and of torch files on this machine; no tensor is.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from contracts import storage
from contracts.artifacts import InitialWeights
from trainer.checkpoint.framing import LENGTH_BYTES, Malformed, header_bytes, parse_header
from trainer.weights.source import SAFETENSORS, WeightSource, find_source, refused
from trainer.weights.start import Head, require_match, take_tensors
from trainer.weights.tensors import tensors_of_torch_file

Shapes = dict[str, tuple[int, ...]]


def check_fit(
    uri: str,
    network: nn.Module,
    head: Head | None,
    least: float,
    check: Callable[[WeightSource], None] = lambda source: None,
) -> str:
    """Refuse weights of which too little fits a network; return why that could not be found out, empty: it was.

    Args:
        uri: Of the weights.
        network: On the meta device, or anywhere; it stays as it is.
        head: Its head.
        least: Share of its elements that must fit.
        check: Refuses weights of other inputs.

    Raises:
        ModelError: The weights are not there, cannot be read, or are those of another network or other inputs.
        DataError: A document of theirs is damaged.
    """
    source = find_source(uri)
    check(source)
    shapes = _read_shapes(source)
    if shapes is None:
        return f"the names in {storage.display(uri)}: a torch file in a bucket is read when training starts"
    given = {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}
    found = take_tensors(network, given, head, theirs=None, looks=True)
    report = InitialWeights(source=source.uri, kind=source.kind, sha256="", **found)  # type: ignore[arg-type]
    require_match(report, least, network, source)
    return ""


def _read_shapes(source: WeightSource) -> Shapes | None:
    """Return the shape of each tensor by name; None: a file would have to be read whole."""
    shapes: Shapes = {}
    for uri in source.tensor_files:
        if uri.endswith(".json"):
            continue
        if not uri.lower().endswith(SAFETENSORS):
            if not storage.is_local(uri):
                return None
            path = storage.local_path(uri)
            # The data of a zip stays on the disk; files of old versions are read.
            tensors = tensors_of_torch_file(uri, path, maps=zipfile.is_zipfile(path))
            shapes |= {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        else:
            shapes |= _read_header(uri, is_ours=source.kind == "checkpoint")
    return shapes


def _read_header(uri: str, *, is_ours: bool) -> Shapes:
    try:
        size = storage.info(uri).size
        length = header_bytes(storage.read_range(uri, 0, LENGTH_BYTES), size)
        content = storage.read_range(uri, LENGTH_BYTES, length)
        data_bytes = size - LENGTH_BYTES - length
        if is_ours:
            return {entry.name: entry.global_shape for entry in parse_header(content, data_bytes)}
        return _parse(content, data_bytes)
    except FileNotFoundError:
        raise refused(uri, "is not there", todo="correct the path or URI") from None
    except (Malformed, ValueError, KeyError, TypeError, AttributeError) as error:
        raise refused(uri, f"cannot be read as safetensors: {error}", todo="copy or save it again") from error


def _parse(content: bytes, data_bytes: int) -> Shapes:
    """Read the header of any library's file: it may have types that checkpoints do not."""
    values: dict[str, Any] = json.loads(content)
    values.pop("__metadata__", None)
    stop = max((value["data_offsets"][1] for value in values.values()), default=0)
    if stop != data_bytes:
        raise Malformed(f"its tensors have {stop} bytes, its data {data_bytes}")
    return {name: tuple(int(size) for size in value["shape"]) for name, value in values.items()}
