"""`python -m trainer.check`: what it refuses, what it leaves unchecked, and what it needs."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from contracts.checked import Findings
from contracts.config import ModelSection
from contracts.config.load import parse_config
from tests.conftest import OWN_CODE, SMALL
from tests.trainer.tasks.for_tests import image_network
from tests.trainer.tasks.small import Small
from trainer.check.__main__ import check_machine_side, check_network_side, main

OWN = "models_for_tests"
PLAIN = {"architecture": f"{OWN}:without_batchnorm"}
FIELDS = {"image": {"column": "image", "kind": "image"}, "label": {"column": "label", "kind": "class"}}
CPU = {"type": "n1-standard-4"}
T4 = {"type": "n1-standard-8", "accelerator_type": "NVIDIA_TESLA_T4"}
H100 = {"type": "a3-highgpu-8g"}


def network(*, elsewhere: bool = False, **sections: Any) -> Findings:
    values: dict[str, Any] = {"model": PLAIN, "data": {"image_size": 16}, "code": {"path": str(OWN_CODE)}, **sections}
    findings = Findings()
    check_network_side(parse_config(values, where="test"), findings, elsewhere=elsewhere)
    return findings


def machine(planned: dict[str, str] | None = None, **sections: Any) -> Findings:
    """What the machine side says here, or of a planned machine."""
    values = {**sections, "resources": {"machine": planned}} if planned else sections
    findings = Findings()
    check_machine_side(parse_config(values, where="test"), findings, elsewhere=planned is not None)
    return findings


def in_words(answer: Findings) -> str:
    return "\n".join(f"{problem.given} | {problem.allowed} | {problem.todo}" for problem in answer.problems)


@pytest.mark.parametrize("model", [PLAIN, {"architecture": "vit"}, {"architecture": "networks:needs_values"}])
def test_a_network_that_can_be_trained_passes(model: dict[str, Any]) -> None:
    answer = network(model=model, data={"image_size": 224})
    assert (answer.problems, answer.unchecked) == ([], [])


@pytest.mark.parametrize(
    ("sections", "given", "todo"),
    [
        ({"model": {"architecture": "resnett"}}, "'resnett' is unknown", "did you mean resnet?"),
        ({"model": {"architecture": "no_such_module:net"}}, "holds no module no_such_module", "install the package"),
        ({"model": {"architecture": "networks:breaks"}}, "cannot be built: OSError: no such device", "correct"),
        ({"data": {"transform": "no_such_module:change"}}, "data.transform 'no_such_module:change'", "install"),
        ({"model": {**PLAIN, "freeze": ["0.*", "5.wieght"]}}, "model.freeze: the pattern '5.wieght'", "5.weight"),
        ({"model": {**PLAIN, "freeze": ["*"]}}, "freezes all parameters", "less"),
        ({"model": {**PLAIN, "weights": "nowhere.pt"}}, "model.weights nowhere.pt is not there", "correct the path"),
    ],
)
def test_a_mistake_in_network_or_own_code_is_a_problem(sections: dict[str, Any], given: str, todo: str) -> None:
    answer = network(**sections)
    assert len(answer.problems) == 1
    assert given in answer.problems[0].given
    assert todo in in_words(answer)


@pytest.mark.parametrize(
    ("member", "value", "given"),
    [
        ("scale", 1, ""),
        (
            "example",
            lambda task, size: {"x": torch.zeros(size, 4, dtype=torch.int64)},
            "input x of the example batch is int64 [2, 4], the task's signature says float32",
        ),
        ("update", lambda task, metrics, outputs, batch: metrics["iou"], "update failed: KeyError: 'iou'"),
        ("outcomes", lambda task, outputs, batch: {"answer": [1]}, "outcomes returned {'answer': 1} for 2 samples"),
    ],
)
def test_an_own_task_is_run_on_its_example(
    monkeypatch: pytest.MonkeyPatch, member: str, value: object, given: str
) -> None:
    monkeypatch.setattr(Small, member, value, raising=False)
    name = "tests.trainer.tasks.small:Small"
    answer = network(sharding={"fields": FIELDS}, task={"name": name}, model={}, code={})
    assert given in in_words(answer) and len(answer.problems) == bool(given), answer


def test_weights_that_are_there_or_not_asked_for_pass(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    with torch.random.fork_rng():
        save_file(image_network(ModelSection(**PLAIN)).state_dict(), path)
    assert network(model={**PLAIN, "weights": str(path)}).problems == []
    assert "has 0.00 of the network's elements" in in_words(network(model={"weights": str(path)}))
    from transformers import AutoConfig, AutoModelForImageClassification

    saved = tmp_path / "saved"
    small = SMALL["model"]["arguments"]
    with torch.random.fork_rng():
        AutoModelForImageClassification.from_config(AutoConfig.for_model("resnet", **small)).save_pretrained(saved)
    # Its config.json says how large the network is.
    assert network(model={"weights": str(saved)}).problems == []
    assert network(model={**PLAIN, "weights": "previous"}).problems == []
    offline = network(model={**PLAIN, "weights": "gs://bucket/w.pt"})
    assert offline.unchecked == ["unchecked, since no bucket is asked offline: model.weights gs://bucket/w.pt"]
    # A check that fails by itself refuses nothing.
    failed = network(model={**PLAIN, "weights": "w" * 300})
    assert failed.problems == [] and "the check itself failed (OSError: " in failed.unchecked[0]


def test_what_an_image_may_have_is_unchecked_for_other_machines(tmp_path: Path) -> None:
    """What own code imports besides, and the variables of its job; not its own name, and nothing that Python hides."""
    (tmp_path / "needs_package.py").write_text("import no_such_package\n")
    (tmp_path / "needs_variable.py").write_text("import os\nos.environ['NO_SUCH_VARIABLE']\n")
    (tmp_path / "records.py").write_text("")
    code = {"path": str(tmp_path)}

    def count(name: str, *, elsewhere: bool) -> tuple[int, int]:
        answer = network(model={"architecture": f"{name}:net"}, code=code, elsewhere=elsewhere)
        return len(answer.problems), len(answer.unchecked)

    for name in ("needs_package", "needs_variable"):
        assert count(name, elsewhere=False) == (1, 0)
        assert count(name, elsewhere=True) == (0, 1)
    assert count("no_such_module_of_mine", elsewhere=True) == (1, 0)
    # Making the task must not import a transform once more, and call it a mistake.
    answer = network(model={}, code=code, data={"transform": "needs_package:change"}, elsewhere=True)
    assert answer.problems == [] and "whether data.transform 'needs_package:change' imports" in answer.unchecked[0]
    hidden = network(model={"architecture": "records:net"}, code=code)
    assert "is shadowed by" in in_words(hidden)
    assert any(warning.startswith("module records below code.path is hidden by /") for warning in hidden.warnings)


def test_what_depends_on_classes_or_a_gpu_is_left_unchecked() -> None:
    cases = {"of_ten": "the number of classes is not known before sharding"}
    if not torch.cuda.is_available():
        cases["of_a_gpu"] = "it asks for a GPU, and there is none here"
    for name, reason in cases.items():
        answer = network(model={"architecture": f"networks:{name}"})
        assert answer.problems == [] and reason in answer.unchecked[0]


@pytest.mark.parametrize(
    ("sections", "given"),
    [
        ({"export": {"runtime": "tensorrt_rtx", "target": "h100"}}, "tensorrt_rtx builds no engine for sm90"),
        ({"export": {"target": "h1000"}}, "export.target names 'h1000'"),
        ({"parallel": {"sync_batch_norm": True}}, "parallel.sync_batch_norm is on, but there is no GPU"),
    ],
)
def test_what_a_place_cannot_do_is_a_problem_here_and_planned(
    sections: dict[str, Any], given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As on a machine without a GPU, wherever the test runs.
    monkeypatch.setattr("trainer.check.__main__.visible_gpus", list)
    monkeypatch.setattr("trainer.export.runtime.gpu_target", lambda: None)
    for answer in (machine(**sections), machine(CPU, **sections)):
        assert len(answer.problems) == 1, answer
        assert given in answer.problems[0].given


def test_a_planned_machine_is_known_without_it() -> None:
    (warning,) = machine(CPU, train={"precision": "fp16"}).warnings
    assert "fp16, and there is no GPU" in warning
    (warning,) = machine(T4, train={"precision": "bf16"}).warnings
    assert "bf16, which the GPU can only emulate" in warning
    found = machine(H100, train={"precision": "bf16"}, parallel={"sync_batch_norm": True})
    assert (found.problems, found.warnings) == ([], [])
    assert "whether the gpu image has tensorrt" in found.unchecked[0]
    # The rules of a plan report it.
    assert machine({"type": "g2-standard-5"}) == Findings()


def test_the_last_line_is_the_answer_whatever_own_code_prints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "talks.py").write_text("print('hello')\ndef net(num_classes): raise ValueError('no')\n")
    config = {"model": {"architecture": "talks:net"}, "code": {"path": str(tmp_path)}}
    assert main(["--config-json", json.dumps(config)]) == 0
    printed = capsys.readouterr()
    assert "hello" in printed.err
    assert "cannot be built: ValueError: no" in Findings.model_validate_json(printed.out).problems[0].given
    assert main(["--config-json", '{"model": {"architektur": 1}}']) == 2


def test_without_torch_the_rest_is_checked_and_what_is_not_is_named() -> None:
    transform = "no_such_module:change"
    config = {"code": {"path": str(OWN_CODE)}, "data": {"transform": transform}, "export": {"target": "h1000"}}
    # As where torch is not installed: it is neither found nor imported.
    code = """
import importlib.abc, importlib.util, sys

class Without(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")

sys.meta_path.insert(0, Without())
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name == "torch" else find_spec(name, package)
from trainer.check.__main__ import main
sys.exit(main(sys.argv[1:]))
"""
    command = [sys.executable, "-c", code, "--config-json", json.dumps(config)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    answer = Findings.model_validate_json(done.stdout)
    assert any(text.startswith("unchecked, since torch is not installed: the network") for text in answer.unchecked)
    assert len(answer.problems) == 2 and "no_such_module" in in_words(answer) and "h1000" in in_words(answer)


@pytest.mark.parametrize(("positions", "given"), [(64, ""), (40, "fails at length 64 (max of its range")])
def test_a_network_runs_at_the_longest_sample_before_the_first_stage(positions: int, given: str) -> None:
    fields = {"text": {"column": "text", "kind": "text"}, "label": {"column": "label", "kind": "class"}}
    task = {"name": "words:Words", "arguments": {"positions": positions}}
    answer = network(sharding={"fields": fields}, task=task, model={})
    assert given in in_words(answer) and len(answer.problems) == bool(given), answer
    assert not answer.unchecked
