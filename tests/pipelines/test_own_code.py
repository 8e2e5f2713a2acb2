"""Own code through the commands: packed, imported from the archive alone, part of the result."""

import json
import re
import tarfile
from pathlib import Path
from typing import Any

import pytest

from contracts.config.load import parse_config
from pipelines.compile import CompiledLine
from tests.conftest import OWN_CODE, small_config
from tests.pipelines.compiled import compile_config
from tests.pipelines.conftest import Shardline
from tests.pipelines.test_rules import VALID

# Every process that imports it says where it looks for modules.
NET = """
import os, sys
import records
from own_parts.blocks import head
assert os.getcwd() not in sys.path and "" not in sys.path, sys.path
assert sys.path[-1] == os.path.dirname(__file__), sys.path
assert not records.__file__.startswith(sys.path[-1])
def net(num_classes):
    return head(num_classes)
"""
BLOCKS = """
from torch import nn
def head(num_classes):
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(num_classes))
"""
CHANGE = """
import multiprocessing, os, sys
from own_parts.table import TABLE
assert sys.path[-1] == os.path.dirname(__file__), sys.path
def change(image):
    assert multiprocessing.parent_process() is not None
    return TABLE[image]
"""
TABLE = """
import numpy, pathlib
TABLE = numpy.frombuffer(pathlib.Path(__file__).with_name("table.bin").read_bytes(), "uint8")
"""


@pytest.fixture
def code(project: Path) -> Path:
    """A folder of own code in the project's folder, where the commands run."""
    folder = project / "own"
    (folder / "own_parts").mkdir(parents=True, exist_ok=True)
    for name, text in {
        "own_net.py": NET,
        "own_change.py": CHANGE,
        "own_parts/__init__.py": "",
        "own_parts/blocks.py": BLOCKS,
        "own_parts/table.py": TABLE,
        # Never imported: it does not replace ours.
        "trainer.py": "raise RuntimeError('replaced')\n",
    }.items():
        (folder / name).write_text(text)
    (folder / "own_parts" / "table.bin").write_bytes(bytes(range(256)))
    return folder


def test_training_runs_the_archive(shardline: Shardline, project: Path, code: Path, small_shards: str) -> None:
    (code / "own_link.py").symlink_to("own_net.py")
    first = shardline(
        *("train", "tiny.yaml", "--shards", small_shards),
        *("model.architecture=own_net:net", "data.transform=own_change:change"),
        *("code.path=own", "profile=off", "data.num_workers=1", "resources.ranks=1"),
    )
    assert first.returncode == 0, first.stderr
    assert "own_link.py, below code.path, is a link: it is left out" in first.stderr
    archives = project / "runs" / "tiny" / "code"
    (archive,) = archives.iterdir()
    with tarfile.open(archive) as members:
        assert sorted(members.getnames()) == [
            *("own_change.py", "own_net.py", "own_parts/__init__.py", "own_parts/blocks.py"),
            *("own_parts/table.bin", "own_parts/table.py", "trainer.py"),
        ]


def planned(code: Path, **sections: Any) -> CompiledLine:
    values = small_config(**VALID, export={"runtime": "onnx"}) | {"code": {"path": str(code)}, **sections}
    return compile_config(parse_config(values, where="test"))


def test_code_travels_in_the_bucket_named_by_its_content(tmp_path: Path) -> None:
    code = tmp_path / "own"
    code.mkdir()
    (code / "own_net.py").write_text((OWN_CODE / "models_for_tests.py").read_text())
    own = {"model": {"architecture": "own_net:without_batchnorm"}}
    plain, first = planned(code), planned(code, **own)
    assert not [uri for uri in plain.documents if "/code/" in uri]
    (archive,) = (uri for uri in first.documents if "/code/" in uri)
    assert re.fullmatch(r"gs://my-bucket/runs/flowers/code/[0-9a-f]{64}\.tar\.gz", archive)
    for stage in ("profile", "train", "export"):
        section = json.loads(first.parameters[f"{stage}_config"])["code"]
        assert section["path"] == archive
    with (code / "own_net.py").open("a") as text:
        text.write("\n\nMORE = 1\n")
    second = planned(code, **own)
    assert second.parameters["train_config"] != first.parameters["train_config"]
    assert second.parameters["shard_config"] == first.parameters["shard_config"]
