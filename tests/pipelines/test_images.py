import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from contracts.config import MachineSection
from contracts.config.load import load_config
from contracts.errors import ConfigError, TryAgain
from pipelines.images import build
from pipelines.images.build import find_commit, find_sources
from pipelines.images.record import ROLES, find_cuda, find_image, is_pinned, read_record
from pipelines.plan import outline
from tests.pipelines.test_plan import DIGEST, VALID, config

REPOSITORY = "us-docker.pkg.dev/my-project/images"
UNSET = "cloud.images={pipeline: ''}"


def record(folder: Path, **changes: str) -> Path:
    values = {role: f"{REPOSITORY}/{role}{DIGEST}" for role in ROLES} | {"built_at": "2026-11-22T00:00:00+00:00"}
    path = folder / "images-my-project.json"
    path.write_text(json.dumps(values | changes))
    return path


def test_the_configuration_wins_over_the_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    record(tmp_path)
    resolved = config(f"cloud.images={{trainer: 'us-docker.pkg.dev/other/t{DIGEST}'}}")
    assert find_image(resolved, "trainer") == f"us-docker.pkg.dev/other/t{DIGEST}"
    assert find_image(resolved, "pipeline") == f"{REPOSITORY}/pipeline{DIGEST}"


def test_without_images_there_is_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"cloud.images.pipeline is not set") as caught:
        find_image(config(UNSET), "pipeline")
    assert "shardline images build" in caught.value.todo
    assert "set cloud.images" in caught.value.todo


def test_each_project_of_a_folder_has_a_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    other = ("cloud.project=other-project", UNSET)
    mine, theirs = f"us-docker.pkg.dev/a/b/pipeline{DIGEST}", f"us-docker.pkg.dev/c/d/pipeline{DIGEST}"
    record(tmp_path, pipeline=theirs).rename(tmp_path / "images-other-project.json")
    record(tmp_path, pipeline=mine)
    assert (find_image(config(UNSET), "pipeline"), find_image(config(*other), "pipeline")) == (mine, theirs)


def test_the_examples_name_no_images() -> None:
    for example in (find_sources() / "configs").glob("*.yaml"):
        images = load_config(example).cloud.images
        assert not any((images.pipeline, images.trainer, images.export, images.serving)), example


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"trainer": f"{REPOSITORY}/trainer:latest"}, "is not pinned by its digest"),
        ({"trainer": ""}, "is not pinned by its digest"),
        ({"more": "x"}, "is no record of images"),
        ({"commit": "main"}, "is no record of images"),
    ],
)
def test_a_damaged_record_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    record(tmp_path, **changes)
    with pytest.raises(ConfigError, match=said):
        find_image(config(UNSET), "trainer")


@pytest.mark.parametrize(
    ("reference", "pinned"),
    [
        (f"us-docker.pkg.dev/p/r/i{DIGEST}", True),
        (f"localhost.local:5000/i{DIGEST}", True),
        ("us-docker.pkg.dev/p/r/i:tag", False),
        (f"trainer{DIGEST}", False),
        (f"us-docker.pkg.dev/p/r/i{DIGEST}\n", False),
    ],
)
def test_what_is_pinned(reference: str, pinned: bool) -> None:
    assert is_pinned(reference) is pinned


@pytest.mark.skipif(not (find_sources() / ".git").exists(), reason="the files are no checkout of git's")
def test_the_checkout_has_a_commit() -> None:
    commit = find_commit(find_sources())
    assert len(commit.removesuffix("-dirty")) == 40
    assert find_commit(Path("/")) == ""


Images = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def images(tmp_path: Path) -> Images:
    """Runs `shardline images` in a folder of its own, with a PATH of the test's."""
    path = tmp_path / "flowers.yaml"
    values = {**VALID, "cloud": {**VALID["cloud"], "images": {"repository": REPOSITORY}}}
    path.write_text(yaml.safe_dump(values))

    def run(*arguments: str, tools: Path | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
        git = shutil.which("git")
        assert git is not None
        search = f"{tools}:{Path(git).parent}" if tools else str(tmp_path / "nothing")
        return subprocess.run(
            [sys.executable, "-m", "pipelines.cli", "images", arguments[0], str(path), *arguments[1:]],
            cwd=tmp_path,
            env={**os.environ, "PATH": search, "PYTHONPATH": str(find_sources()), **variables},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return run


def write_tool(folder: Path, name: str, program: str) -> Path:
    """Write an executable that stands in for a tool which cannot run here: no engine, no Cloud Build."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(
        f"#!{sys.executable}\nimport json, sys\nfrom pathlib import Path\narguments = sys.argv[1:]\n{program}"
    )
    path.chmod(0o755)
    return folder


# An engine that keeps what it was asked and names digests as Docker does.
DOCKER = """
with Path("calls.jsonl").open("a") as calls:
    calls.write(json.dumps(arguments) + "\\n")
if arguments[0] == "build":
    context = Path(arguments[-1])
    sys.exit(0 if Path(arguments[2]).is_file() and (context / "pyproject.toml").is_file() else 3)
if arguments[0] == "image":
    name = arguments[-1].rpartition(":")[0]
    print(json.dumps([name + "@sha256:" + "b" * 64, "other.pkg.dev/x@sha256:" + "a" * 64]))
"""


def find_all(folder: Path, *overrides: str) -> dict[str, str]:
    """Return the image of each role as a submission from a folder finds it."""
    resolved = load_config(folder / "flowers.yaml", list(overrides))
    return {role: find_image(resolved, role) for role in ROLES}


def test_docker_builds_pushes_and_records(images: Images, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tools = write_tool(tmp_path / "tools", "docker", DOCKER)
    answer = images("build", "--with", "docker", "-o", "json", tools=tools)
    assert answer.returncode == 0, answer.stderr
    made = read_record(tmp_path / "images-my-project.json")
    assert made is not None
    assert made.trainer == f"{REPOSITORY}/trainer@sha256:{'b' * 64}"
    assert json.loads(answer.stdout) == made.model_dump()
    assert made.commit == find_commit(find_sources())
    calls = [json.loads(line) for line in (tmp_path / "calls.jsonl").read_text().splitlines()]
    assert [(call[0]) for call in calls] == ["build", "push", "image"] * 3
    assert "TENSORRT=11.3.0" in calls[6] and "RTX=" in calls[6]
    assert all("TENSORRT" not in word for call in calls[:6] for word in call)
    assert (made.tensorrt, made.tensorrt_rtx) == ("11.3.0", False)
    # Of a runtime that needs another builder, the record says so before anything is paid.
    wants = "export.runtime=tensorrt_rtx"
    with pytest.raises(ConfigError, match=r"no TensorRT-RTX, which export\.runtime names"):
        find_all(tmp_path, wants)
    answer = images("build", wants, "--with", "docker", "--tensorrt", "none", tools=tools)
    assert answer.returncode == 0, answer.stderr
    calls = [json.loads(line) for line in (tmp_path / "calls.jsonl").read_text().splitlines()]
    assert "TENSORRT=" in calls[15] and "RTX=rtx" in calls[15]
    with pytest.raises(ConfigError, match="no TensorRT, which"):
        find_all(tmp_path, "export.runtime=tensorrt")
    assert find_all(tmp_path)["trainer"] == made.trainer


def test_requirements_of_own_code_are_installed_and_recorded(
    images: Images, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "needs.txt").write_text("timm==1.0.20\n")
    keeps = "Path('got.txt').write_bytes((context / 'docker/own-requirements.txt').read_bytes())\n    sys.exit(0 if"
    kept = DOCKER.replace("sys.exit(0 if", keeps)
    tools = write_tool(tmp_path / "tools", "docker", kept)
    needs = "code.requirements=needs.txt"
    answer = images("build", needs, "--with", "docker", tools=tools)
    assert answer.returncode == 0, answer.stderr
    assert (tmp_path / "got.txt").read_text() == "timm==1.0.20\n"
    made = read_record(tmp_path / "images-my-project.json")
    assert made is not None
    assert made.requirements_sha256 == hashlib.sha256(b"timm==1.0.20\n").hexdigest()
    assert find_all(tmp_path, needs)
    # Images of other requirements would end the job with No module named ..., after the shards were paid for.
    (tmp_path / "needs.txt").write_text("timm==1.0.21\n")
    with pytest.raises(ConfigError, match="run `shardline images build CONFIG` again"):
        find_all(tmp_path, needs)
    record(tmp_path).rename(tmp_path / "images-my-project.json")
    with pytest.raises(ConfigError, match="were built without any"):
        find_all(tmp_path, needs)
    for role in ("trainer", "export"):
        text = (find_sources() / "docker" / f"{role}.Dockerfile").read_text()
        assert "--requirement own-requirements.txt" in text


def test_a_build_that_fails_leaves_the_old_record(images: Images, tmp_path: Path) -> None:
    before = record(tmp_path).rename(tmp_path / "images-my-project.json").read_text()
    tools = write_tool(tmp_path / "tools", "docker", "print('no space left', file=sys.stderr)\nsys.exit(1)\n")
    answer = images("build", "--with", "docker", tools=tools)
    assert answer.returncode == 2
    assert "no space left" in answer.stderr
    assert "`docker build --file` ended with exit code 1" in answer.stderr
    assert (tmp_path / "images-my-project.json").read_text() == before


def test_without_an_engine_there_is_advice(images: Images) -> None:
    answer = images("build", "--with", "docker")
    assert answer.returncode == 2
    assert "docker is not installed" in answer.stderr and "set cloud.images" in answer.stderr


def test_without_a_repository_there_is_advice(images: Images) -> None:
    answer = images("build", "cloud.images.repository=''")
    assert answer.returncode == 2
    assert "gcloud artifacts repositories create" in answer.stderr


def test_a_tool_that_does_not_end_is_try_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "TOOL_TIMEOUT_S", 0.1)
    with pytest.raises(TryAgain, match="`sleep 600` has not ended"):
        build._run(["sleep", "600"], "look")


def test_a_build_that_waits_for_others_is_try_again() -> None:
    # What a tool says is shown as it comes, and diagnosed when it has ended.
    said = "ERROR: These quota metrics exceed quota limits: cloudbuild.googleapis.com/concurrent_builds"
    with pytest.raises(TryAgain, match="as many builds"):
        build._run(["sh", "-c", f"echo '{said}' >&2; exit 1"], "look")
    refused = "FAILED_PRECONDITION: due to quota restrictions, cannot run builds in this region"
    with pytest.raises(ConfigError, match="without that restriction"):
        build._run(["sh", "-c", f"echo '{refused}' >&2; exit 1"], "look")
    with pytest.raises(ConfigError, match="to do: look"):
        build._run(["sh", "-c", "echo 'no such file' >&2; exit 1"], "look")
    assert build._run(["sh", "-c", "echo answer; echo told >&2"], "look") == "answer\n"


@pytest.mark.parametrize(
    ("machine", "cuda"),
    [
        ("g2-standard-8", "cu126"),
        ("n1-standard-8+V100", "cu126"),
        ("a4-highgpu-8g", "cu130"),
        ("g4-standard-48", "cu130"),
        ("nothing", "cu126"),
    ],
)
def test_images_have_the_cuda_that_the_machine_needs(machine: str, cuda: str) -> None:
    kind, _, gpu = machine.partition("+")
    given = {"accelerator_type": f"NVIDIA_TESLA_{gpu}"} if gpu else {}
    assert find_cuda(MachineSection.model_validate({"type": kind, **given})) == cuda


def test_images_without_code_for_a_gpu_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    record(tmp_path, cuda_trainer="cu126", cuda_export="cu126")
    given = [UNSET, "resources.serving_machine.type=g2-standard-8"]
    blackwell = config(*given, "resources.machine={type: g4-standard-48}")
    assert find_image(blackwell, "export")
    with pytest.raises(ConfigError, match=r"trainer's image has CUDA 12\.6, which has no code for the GPU of g4"):
        find_image(blackwell, "trainer")
    assert "no code for the GPU" in build.why_to_build(blackwell)
    record(tmp_path, cuda_trainer="cu130", cuda_export="cu130")
    assert find_image(blackwell, "trainer") and build.why_to_build(blackwell) == ""
    # CUDA 12.6 has code for Volta, 13.0 has none: torch trains there, and exports elsewhere.
    volta = config(*given, "resources.machine={type: n1-standard-8, accelerator_type: NVIDIA_TESLA_V100}")
    assert not [problem for problem in outline(volta).problems if "V100" in problem.given]
    with pytest.raises(ConfigError, match=r"trainer's image has CUDA 13\.0, which has no code for the GPU of n1"):
        find_image(volta, "trainer")
    record(tmp_path, cuda_trainer="cu126", cuda_export="cu130")
    assert find_image(volta, "trainer") and find_image(volta, "export")
