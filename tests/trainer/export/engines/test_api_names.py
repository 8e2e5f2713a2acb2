"""Every name of the builders' API that is used here, looked up in the binaries of the bindings.

tensorrt itself cannot run here: its bindings can be downloaded, its libraries cannot be loaded. That a name is in the
binary says that it exists, and no more.
"""

from __future__ import annotations

import ast
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from trainer.export.engines import engine, engine_open
from trainer.export.engines.engine import load_api

# Variables that hold objects of the API.
OBJECTS = {"api", "factory", "network", "parser", "config", "profile", "runtime", "engine", "context", "tensor"}
# Names of Python, of numpy's, of torch's and of our own classes that hang on them.
NOT_THEIRS = {"cpu", "data_ptr", "name", "lower", "upper", "partition", "__members__", "__init__", "desc"}
# For tensorrt_rtx alone: tensorrt builds for the GPU that is there.
RTX_ONLY = {"_set_targets"}


def used_names(*, rtx: bool) -> set[str]:
    """Return the attributes that engine.py and engine_open.py take of the API's objects."""
    found = set()
    for module in (engine, engine_open):
        assert module.__file__ is not None
        for function in ast.walk(ast.parse(Path(module.__file__).read_text())):
            if not isinstance(function, ast.FunctionDef) or (function.name in RTX_ONLY and not rtx):
                continue
            found |= attributes_of(function)
    return found - NOT_THEIRS


def attributes_of(function: ast.FunctionDef) -> set[str]:
    found = set()
    for node in ast.walk(function):
        chain = []
        while isinstance(node, ast.Attribute | ast.Call):
            if isinstance(node, ast.Attribute):
                chain.append(node.attr)
                node = node.value
            else:
                node = node.func
        if isinstance(node, ast.Name) and node.id in OBJECTS:
            found |= set(chain)
        elif isinstance(node, ast.Name) and node.id == "self" and chain and chain[-1].lstrip("_") in OBJECTS:
            found |= set(chain[:-1])
    return found


def binaries(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*.so")))


def test_the_names_are_found_in_the_code() -> None:
    names = used_names(rtx=False)
    assert names >= {
        *("Builder", "create_network", "OnnxParser", "parse_from_file", "create_builder_config", "set_shape"),
        *("create_optimization_profile", "add_optimization_profile", "build_serialized_network", "Runtime"),
        *("deserialize_cuda_engine", "create_execution_context", "set_input_shape", "set_tensor_address"),
        *("execute_async_v3", "num_inputs", "get_input", "dtype", "shape", "ILogger"),
    }
    assert "set_compute_capability" not in names
    assert "set_compute_capability" in used_names(rtx=True)


def test_the_installed_builder_has_every_name() -> None:
    load_api("tensorrt_rtx")
    (bindings,) = {
        Path(module.__file__).parent
        for name, module in sys.modules.items()
        if name.startswith("tensorrt_rtx") and getattr(module, "__file__", "") and module.__file__.endswith(".so")
    }
    content = binaries(bindings)
    assert b"no_such_name_of_the_api" not in content
    assert [name for name in sorted(used_names(rtx=True)) if name.encode() not in content] == []


@pytest.mark.slow
@pytest.mark.parametrize("requirement", ["tensorrt_cu12_bindings==10.*", "tensorrt_cu13_bindings==11.*"])
def test_tensorrt_has_every_name(tmp_path: Path, requirement: str) -> None:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--dest", str(tmp_path), requirement]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"{requirement} cannot be downloaded here")
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "wheel")
    content = binaries(tmp_path / "wheel")
    assert len(content) > 100_000
    assert [name for name in sorted(used_names(rtx=False)) if name.encode() not in content] == []
