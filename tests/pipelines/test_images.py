"""What is built, which images a submission pins, and which it refuses."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from contracts.config import RunConfig
from contracts.errors import ConfigError
from pipelines import images
from pipelines.images import IMAGE_FILES, find_images, hash_sources, list_sources
from tests.pipelines.test_rules import DIGEST, config

ROOT = Path(__file__).resolve().parents[2]
REPOSITORY = "us-docker.pkg.dev/my-project/images"
NONE = "cloud.images={repository: us-docker.pkg.dev/my-project/images}"
BLACKWELL = "resources.machine={type: g4-standard-48}"
VOLTA = "resources.machine={type: n1-standard-8, accelerator_type: NVIDIA_TESLA_V100}"
T4 = "resources.serving_machine={type: n1-standard-8, accelerator_type: NVIDIA_TESLA_T4}"

Record = Callable[..., Path]


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Record:
    """Write a record into the current folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "needs.txt").write_text("timm==1.0.20\n")

    def write(**changes: object) -> Path:
        values: dict[str, object] = {role: f"{REPOSITORY}/{role}{DIGEST}" for role in ("cpu", "gpu")}
        values |= {"sources_sha256": hash_sources(), "requirements_sha256": "0" * 64}
        values |= {"cuda": "cu126", "tensorrt": "11.3.0", "tensorrt_rtx": False}
        path = tmp_path / "images-my-project.json"
        path.write_text(json.dumps(values | changes))
        return path

    return write


def pins(given: RunConfig) -> list[str]:
    found, missing = find_images(given)
    assert not missing
    return [found.cloud.images.cpu, found.cloud.images.gpu]


def test_the_configuration_wins_over_the_record(record: Record) -> None:
    record()
    assert pins(config(NONE)) == [f"{REPOSITORY}/cpu{DIGEST}", f"{REPOSITORY}/gpu{DIGEST}"]
    own = f"us-docker.pkg.dev/other/gpu{DIGEST}"
    assert pins(config(NONE, f"cloud.images.gpu={own}")) == [f"{REPOSITORY}/cpu{DIGEST}", own]
    for project in ("other-project", "''"):
        assert "there is no images" in find_images(config(NONE, f"cloud.project={project}"))[1][0]


def test_without_images_placeholders_stand_for_them(record: Record) -> None:
    found, missing = find_images(config(NONE))
    assert missing == tuple(
        f"cloud.images.{role} is not set, and there is no images-my-project.json" for role in ("cpu", "gpu")
    )
    assert found.cloud.images.gpu.startswith("not-built.invalid/shardline/gpu@sha256:")
    # A placeholder counts as none.
    assert find_images(found)[1] == missing
    for unpinned in ("us-docker.pkg.dev/p/r/gpu:latest", f"gpu{DIGEST}", f"us-docker.pkg.dev/p/gpu{DIGEST}0"):
        with pytest.raises(ConfigError, match=r"cloud\.images\.gpu(.|\n)*64 hex digits, not"):
            config(f"cloud.images.gpu={unpinned}")


@pytest.mark.parametrize(
    ("changes", "overrides", "lack"),
    [
        ({"cuda": "cu126"}, [BLACKWELL], "CUDA 12.6, which has no code for the GPU of g4-standard-48"),
        ({"cuda": "cu130"}, [VOLTA, T4], "CUDA 13.0, which has no code for the GPU of n1-standard-8"),
        ({"cuda": "cu130"}, [BLACKWELL], ""),
        ({}, ["code.requirements=needs.txt"], "another code.requirements than needs.txt"),
        ({"tensorrt": ""}, ["export.runtime=tensorrt"], "no TensorRT, which"),
        ({}, ["export.runtime=tensorrt_rtx", "register.upload=false"], "no TensorRT-RTX, which"),
    ],
)
def test_a_gpu_image_that_lacks_what_the_configuration_needs_is_refused(
    record: Record, changes: dict[str, object], overrides: list[str], lack: str
) -> None:
    record(**changes)
    given = config(NONE, *overrides)
    _, missing = find_images(given)
    assert len(missing) == bool(lack)
    if lack:
        assert missing[0].startswith("cloud.images.gpu is not set") and lack in missing[0]


def test_an_edit_of_the_readme_changes_nothing_that_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = set(list_sources())
    assert {"pyproject.toml", "deploy/docker/gpu.Dockerfile", "trainer/__init__.py"} <= names
    assert not [name for name in names if name.startswith(("README", "LICENSE", "tests", "rehearsal", "pipelines"))]
    base = tmp_path / IMAGE_FILES
    for name in names:
        place = tmp_path if name.partition("/")[0] in images.PACKAGES else base
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes((ROOT / name).read_bytes())
    here = hash_sources()
    # As an installed wheel has them.
    monkeypatch.setattr(images, "__file__", str(tmp_path / "pipelines" / "images.py"))
    assert hash_sources() == here
    (tmp_path / "trainer" / "task.py").write_text("edited")
    assert hash_sources() != here
    (tmp_path / IMAGE_FILES / "pyproject.toml").unlink()
    with pytest.raises(ConfigError, match=r"has no pyproject\.toml"):
        list_sources()
