"""A model of texts that needs no training: it counts words that are named like classes. Its graph and bundle."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from contracts.serving import graph_level
from trainer.predict.bundle import write_program

CLASSES = ["blue", "green", "red"]
GRAPH_NAME = "model.fp32.onnx"
VOCABULARY = {"[PAD]": 0, "[UNK]": 1, "blue": 2, "green": 3, "red": 4}


def make_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel(VOCABULARY, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


def write_graph(path: Path) -> None:
    """Write the model: the sum of a vector per token, over those that the mask has."""
    vectors = np.zeros((len(VOCABULARY), len(CLASSES)), np.float32)
    for place, name in enumerate(CLASSES):
        vectors[VOCABULARY[name], place] = 0.5 + 0.1 * place
    constants = {"vectors": vectors, "last": np.array([-1], np.int64), "length": np.array([1], np.int64)}
    nodes = [
        helper.make_node("Gather", ["vectors", "tokens"], ["embedded"]),
        helper.make_node("Unsqueeze", ["mask", "last"], ["column"]),
        helper.make_node("Cast", ["column"], ["weight"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["embedded", "weight"], ["masked"]),
        helper.make_node("ReduceSum", ["masked", "length"], ["logits"], keepdims=0),
    ]
    shape = ["batch", "length"]
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, shape) for name in ("tokens", "mask")]
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", len(CLASSES)])
    tensors = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "words", inputs, [logits], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)


def write_export(folder: Path) -> None:
    """Write graph and bundle."""
    folder.mkdir(exist_ok=True)
    write_graph(folder / GRAPH_NAME)
    settings = {
        "model": GRAPH_NAME,
        "optimization": graph_level("fp32"),
        "tokens": "tokens",
        "mask": "mask",
        "output": "logits",
        "max_length": 16,
        "padding": 0,
        "multiple": 8,
    }
    (folder / "preprocess.json").write_text(json.dumps(settings))
    (folder / "labels.json").write_text(json.dumps(CLASSES))
    (folder / "tokenizer.json").write_text(make_tokenizer().to_str())
    write_program(folder, "texts")
