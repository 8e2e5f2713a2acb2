"""The predict.py of a user's own task: arrays that do not fit are refused before anything runs or is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainer.predict import predict_arrays
from trainer.predict.runtimes import BadInput

SAID: dict[str, Any] = {
    "inputs": {
        "tokens": {"dtype": "int64", "shape": ["batch", "length"]},
        "pixels": {"dtype": "float32", "shape": ["batch", 3]},
    },
    "dimensions": {"length": {"min": 2, "opt": 4, "max": 8, "multiple": 2}},
}
TOKENS, PIXELS = np.zeros((5, 4), np.int64), np.zeros((5, 3), np.float32)


def test_arrays_that_fit_are_read(tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", tokens=TOKENS, pixels=PIXELS)
    found = predict_arrays.read_inputs(tmp_path / "in.npz", SAID)
    assert {name: array.shape for name, array in found.items()} == {"tokens": (5, 4), "pixels": (5, 3)}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"pixels": PIXELS.astype(np.float64)}, "pixels is float64"),
        ({"pixels": PIXELS[:, :2]}, r"pixels is float32 \[5, 2\]"),
        ({"pixels": PIXELS[:4]}, r"pixels is float32 \[4, 3\]"),
        ({"pixels": PIXELS[:0], "tokens": TOKENS[:0]}, r"is \w+ \[0, "),
        ({"pixels": PIXELS[0]}, r"pixels is float32 \[3\]"),
        ({"tokens": TOKENS[:, :3]}, "length is 3"),
        ({"tokens": np.zeros((5, 10), np.int64)}, "length is 10"),
        ({"tokens": None}, "lacks tokens"),
        ({"more": PIXELS}, "more, which is no input"),
        ({"pixels": np.array([None])}, "cannot be read: Object arrays"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    arrays = {"tokens": TOKENS, "pixels": PIXELS, **changes}
    np.savez(tmp_path / "in.npz", **{name: array for name, array in arrays.items() if array is not None})
    with pytest.raises(BadInput, match=words):
        predict_arrays.read_inputs(tmp_path / "in.npz", SAID)


def test_a_file_of_another_form_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "one.npy", PIXELS)
    np.savez_compressed(tmp_path / "whole.npz", tokens=TOKENS, pixels=PIXELS)
    content = (tmp_path / "whole.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(content[: len(content) // 2])
    place = content.index(b"pixels.npy") + 30
    (tmp_path / "changed.npz").write_bytes(content[:place] + b"\xff\xff\xff\xff" + content[place + 4 :])
    (tmp_path / "text.npz").write_text("no arrays")
    for name in ("one.npy", "cut.npz", "changed.npz", "text.npz", "missing.npz"):
        with pytest.raises(BadInput, match=f"{name} cannot be read"):
            predict_arrays.read_inputs(tmp_path / name, SAID)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["in.npz", "out.npz", "--threads=0"], "--threads 0: allowed are whole numbers from 1"),
        (["in.npz", "nowhere/out.npz"], "nowhere/out.npz: its folder is not there"),
        (["in.npz"], "required: OUTPUTS.npz"),
    ],
)
def test_bad_arguments_end_with_2(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        predict_arrays.main(arguments)
    assert ended.value.code == 2
    assert words in capsys.readouterr().err
