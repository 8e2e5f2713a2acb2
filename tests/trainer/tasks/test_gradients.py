"""Gradients of losses that count pixels or tokens: those of one process on whole batches, however they are cut."""

import os
import subprocess
import sys
from typing import Any

import pytest
import torch

from tests.trainer.tasks import weighted
from tests.trainer.tasks.weighted import Case

CASES = list(weighted.cases())


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[Case, tuple[dict[str, Any], dict[str, Any]]]:
    """By case what two ranks came to, and one plain process."""
    folder = tmp_path_factory.mktemp("weighted")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*torchrun, "--module", "tests.trainer.tasks.weighted", str(folder)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    # The first lines say why a rank ended; torchrun's own follow.
    assert done.returncode == 0, "\n".join(line for line in done.stderr.splitlines() if "Warning" not in line)[:4000]
    # Written by the ranks that this test has started; a class of a module that was run has another name there.
    import __main__

    for name in ("Case", "Weighted", "WithMomentum", "Tagged"):
        setattr(__main__, name, getattr(weighted, name))
    pairs = torch.load(folder / "found.pt", weights_only=False)
    assert len(pairs) == len(CASES)
    return {Case(**vars(case)): (ours, plain) for case, ours, plain in pairs}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradients_are_those_of_the_whole_batch(
    found: dict[Case, tuple[dict[str, Any], dict[str, Any]]], case: Case
) -> None:
    ours, plain = found[case]
    assert ours["counts"] == plain["counts"], "counted over all ranks"
    assert len(set(ours["counts"])) == 2
    limit = 1e-12 if case.dtype == torch.float64 else 1e-5
    # Momentum and Adam's averages are sums of gradients.
    assert ours["state"].keys() == plain["state"].keys() and ours["state"]
    for name, expected in plain["state"].items():
        assert_near(ours["state"][name], expected, limit, name)
    for name, expected in plain["parameters"].items():
        assert_near(ours["parameters"][name], expected, limit, name)


def assert_near(ours: torch.Tensor, expected: torch.Tensor, limit: float, name: str) -> None:
    assert ours.dtype == expected.dtype or ours.numel() == 1, name
    error = float((ours - expected).abs().max() / expected.abs().max())
    assert error <= limit, f"{name}: {error}"
