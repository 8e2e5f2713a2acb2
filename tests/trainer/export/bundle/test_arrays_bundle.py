"""The gate of an export whose predict.py maps arrays to arrays, with programs that stand for it."""

from __future__ import annotations

import argparse
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from contracts.artifacts import ShardManifest
from contracts.artifacts.signature import Signature
from contracts.errors import ConfigError
from trainer.export.bundle.arrays_bundle import _try_program, predict
from trainer.export.bundle.shipped import Shipped

SIGNATURE = Signature.model_validate(
    {
        "inputs": {"images": {"dtype": "float32", "shape": ["batch", 3, 8, 8]}},
        "outputs": {"mask": {"dtype": "float32", "shape": ["batch", 2, 8, 8]}},
    }
)
COPY = "import numpy as np, sys\nx = np.load(sys.argv[1])['x']\nnp.savez(sys.argv[2], y=x{})\n"
X = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.mark.parametrize(
    ("program", "status", "words"),
    [
        (COPY.format(""), "passed", ""),
        (COPY.format(" + 1"), "failed", "its outputs are not those of the graph"),
        (COPY.format("[:1]"), "failed", "its outputs are not those of the graph"),
        (COPY.format(" * np.nan"), "failed", "its outputs are not those of the graph"),
        # 2 is an answer of programs that say which sample was bad, and none here.
        (
            "import sys\nprint('bad inputs', file=sys.stderr)\nraise SystemExit(2)\n",
            "failed",
            "exit code 2: bad inputs",
        ),
    ],
)
def test_outputs_are_held_against_the_graphs(tmp_path: Path, program: str, status: str, words: str) -> None:
    (tmp_path / "predict.py").write_text(program)
    shipped = Shipped(tmp_path, "model.fp32.onnx", "file:///none", ShardManifest.model_construct(), 1)
    gate = _try_program(shipped, {"x": X}, {"y": X})
    assert (gate.status, gate.figures["samples"]) == (status, 2)
    assert words in gate.reason


def test_a_task_that_cannot_answer_says_what_to_add() -> None:
    document = SimpleNamespace(task="net:Segmentation", signature=SIGNATURE)
    folder: Any = SimpleNamespace(document=document, uri="file:///runs/line/export/0123")
    with pytest.raises(ConfigError) as caught:
        predict(folder, argparse.Namespace())
    assert caught.value.given == "the export is of task net:Segmentation: only its code makes inputs of files"
    for words in (
        "add a program to the code of net:Segmentation",
        "`collate` and `to_model`",
        "images float32 [batch, 3, 8, 8]",
        'numpy.savez("INPUTS.npz", images=...)',
        "python predict.py INPUTS.npz OUTPUTS.npz",
        "mask",
    ):
        assert words in str(caught.value)
