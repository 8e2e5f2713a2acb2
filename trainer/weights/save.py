"""A network's weights as a folder that others load: model.safetensors, and config.json where transformers knows it."""

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
    """Write the network so that from_pretrained loads the folder, where it is one of transformers'.

    The network is on the CPU; `classes` are by row of the head. Not by save_pretrained: the library tells no full disk
    apart.
    """
    state: dict[str, torch.Tensor] = network.state_dict()
    if is_of_transformers(network):
        from transformers.core_model_loading import revert_weight_conversion

        # As save_pretrained names them: older releases of transformers know no other names.
        state = revert_weight_conversion(network, state)  # type: ignore[arg-type]
        config: Any = copy.deepcopy(network.config)
        config.id2label = dict(enumerate(classes))
        config.label2id = {name: row for row, name in enumerate(classes)}
        config.architectures = [type(network).__name__]
        config.to_json_file(folder / TRANSFORMERS_CONFIG)
    # A copy each: tensors that share memory are refused otherwise.
    content = save({name: tensor.clone().contiguous() for name, tensor in state.items()}, metadata={"format": "pt"})
    (folder / WEIGHTS_NAME).write_bytes(content)
