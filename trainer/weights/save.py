"""Save a network's weights for other tools: model.safetensors, and config.json for transformers networks."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import nn

from trainer.model.build import is_of_transformers
from trainer.weights.source import TRANSFORMERS_CONFIG, WEIGHTS_NAME


def save_weights(network: nn.Module, classes: Sequence[str], folder: Path) -> None:
    """Write the weights; from_pretrained can load the folder of a transformers network.

    The network is on the CPU; `classes` are by row of the head. save_pretrained is not used: it hides a full disk.
    """
    state: dict[str, torch.Tensor] = network.state_dict()
    if is_of_transformers(network):
        from transformers.core_model_loading import revert_weight_conversion

        # Names of save_pretrained, for older releases of transformers.
        state = revert_weight_conversion(network, state)  # type: ignore[arg-type]
        config: Any = copy.deepcopy(network.config)
        config.id2label = dict(enumerate(classes))
        config.label2id = {name: row for row, name in enumerate(classes)}
        config.architectures = [type(network).__name__]
        config.to_json_file(folder / TRANSFORMERS_CONFIG)
    # Cloned, since safetensors refuses tensors that share memory.
    content = save({name: tensor.clone().contiguous() for name, tensor in state.items()}, metadata={"format": "pt"})
    (folder / WEIGHTS_NAME).write_bytes(content)
