"""The gate of an export whose predict.py maps arrays to arrays, with programs that stand for it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from contracts.artifacts import ShardManifest
from trainer.export.bundle.arrays_bundle import _try_program
from trainer.export.bundle.shipped import Shipped

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
