from __future__ import annotations

import errno
import resource
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from contracts.artifacts.signature import Dimension, OutputSpec, Signature, TensorSpec
from trainer.export.gates.arrays import pad_batch, random_inputs, store_arrays

REPOSITORY = Path(__file__).parents[4]


def numbers(samples: int, width: int, *, first: int = 0) -> dict[str, np.ndarray]:
    """Return two arrays whose rows count from `first`."""
    rows = np.arange(first, first + samples)
    return {"tokens": rows[:, None] * np.ones(width, np.int64), "mask": rows % 2 == 0}


def test_what_is_stored_is_read_again_in_batches_of_any_size(tmp_path: Path) -> None:
    stored = store_arrays(tmp_path / "a", [numbers(5, 3), numbers(2, 3, first=5)])
    assert (stored.samples, len(stored.parts)) == (7, 1)
    whole = numbers(7, 3)
    for name, array in stored.read().items():
        assert array.dtype == whole[name].dtype and np.array_equal(array, whole[name])
    batches = list(stored.batches(3))
    assert [len(batch["mask"]) for batch in batches] == [3, 3, 1]
    assert np.array_equal(np.concatenate([batch["tokens"] for batch in batches]), whole["tokens"])
    assert [len(batch["mask"]) for batch in stored.batches(3, most=4)] == [3, 1]
    assert batches[0]["tokens"].flags.writeable


def test_samples_of_another_shape_are_a_part_by_themselves(tmp_path: Path) -> None:
    stored = store_arrays(tmp_path / "a", [numbers(4, 3), numbers(4, 3, first=4), numbers(2, 5, first=8)])
    assert [len(batch["mask"]) for batch in stored.batches(6)] == [6, 2, 2]
    # By the sizes in which they were written, whatever the parts are.
    sizes = list(stored.split([4, 4, 2]))
    assert [batch["tokens"].shape for batch in sizes] == [(4, 3), (4, 3), (2, 5)]
    assert [int(batch["tokens"][0, 0]) for batch in sizes] == [0, 4, 8]
    assert [len(batch["mask"]) for batch in stored.split([4, 2])] == [4, 2]
    filled = stored.fill(9)["tokens"]
    assert filled.shape == (9, 3) and filled[8, 0] == 0


def test_a_batch_is_filled_up_with_its_own_samples() -> None:
    assert pad_batch(numbers(2, 1), 5)["tokens"][:, 0].tolist() == [0, 1, 0, 1, 0]
    assert len(pad_batch(numbers(5, 1), 2)["mask"]) == 5


def test_noise_has_the_signature_s_types_and_shapes() -> None:
    signature = Signature(
        inputs={
            "tokens": TensorSpec(dtype="int64", shape=["batch", "length"]),
            "mask": TensorSpec(dtype="bool", shape=["batch", "length"]),
            "table": TensorSpec(dtype="float32", shape=["batch", 4]),
        },
        outputs={"score": OutputSpec(dtype="float32", shape=["batch"])},
        dimensions={"length": Dimension(min=8, opt=16, max=32, multiple=8)},
    )
    found = random_inputs(signature, 3)
    assert {name: (str(array.dtype), array.shape) for name, array in found.items()} == {
        "tokens": ("int64", (3, 16)),
        "mask": ("bool", (3, 16)),
        "table": ("float32", (3, 4)),
    }
    assert set(found["tokens"].ravel()) == {0, 1}


def limit_file_size() -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))


@pytest.mark.parametrize("size", [1001, 10_000])
def test_a_full_disk_has_a_number_and_leaves_nothing(tmp_path: Path, size: int) -> None:
    program = (
        "import pathlib; import numpy as np\n"
        "from trainer.export.gates.arrays import store_arrays\n"
        f"folder = pathlib.Path({str(tmp_path / 'a')!r})\n"
        f"try: store_arrays(folder, [{{'x': np.zeros({size}, np.uint8)}}])\n"
        "except OSError as error: print(error.errno, folder.exists())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, preexec_fn=limit_file_size
    )
    assert (done.stdout.strip(), done.stderr) == (f"{errno.EFBIG} False", "")
