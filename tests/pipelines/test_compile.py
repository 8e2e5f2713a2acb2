"""What a configuration compiles to, and that Google's and KFP's own readers take it."""

import copy
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from google.auth.credentials import AnonymousCredentials
from google.cloud import aiplatform
from google.protobuf import json_format
from kfp import components
from kfp.pipeline_spec import pipeline_spec_pb2

from contracts.canonical import canonical_hash
from contracts.config.load import load_config
from contracts.errors import ConfigError
from pipelines.compile import MAX_PARAMETER, CompiledLine, write_spec
from tests.pipelines.compiled import compile_config
from tests.pipelines.images import REGISTERED

ROOT = Path(__file__).parents[2]
CONFIGS = ("digits-vertex", "photos-h100-flex")
# Who gets an artifact of whom.
EDGES = {
    ("shard", "profile", "shards"),
    ("shard", "train", "shards"),
    ("profile", "train", "report"),
    ("shard", "export", "shards"),
    ("train", "export", "model"),
    ("shard", "register", "shards"),
    ("export", "register", "served"),
}


def load(name: str = "digits-vertex", *overrides: str) -> Any:
    return load_config(ROOT / "configs" / f"{name}.yaml", [*REGISTERED, *overrides])


@cache
def compiled(name: str = "digits-vertex", *overrides: str) -> CompiledLine:
    return compile_config(load(name, *overrides))


@pytest.fixture(scope="module", params=CONFIGS)
def line(request: pytest.FixtureRequest) -> CompiledLine:
    return compiled(request.param)


def tasks_of(spec: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the line's tasks; where mail is sent they are inside of an exit handler."""
    dag = spec["root"]["dag"]
    (handler, *_) = [name for name in dag["tasks"] if name.startswith("exit-handler")] or [""]
    if handler:
        assert set(dag["tasks"]) == {handler, "vertex-pipelines-notification-email"}
        dag = spec["components"][dag["tasks"][handler]["componentRef"]["name"]]["dag"]
    found: dict[str, dict[str, Any]] = dag["tasks"]
    return found


def job_of(spec: dict[str, Any], stage: str) -> dict[str, Any]:
    """Return the defaults of a stage's CustomJob: what was decided when it was compiled."""
    component = spec["components"][tasks_of(spec)[stage]["componentRef"]["name"]]
    inputs = component["inputDefinitions"]["parameters"]
    return {name: definition.get("defaultValue") for name, definition in inputs.items()}


def pools_of(spec: dict[str, Any], stage: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = job_of(spec, stage)["worker_pool_specs"]
    return found


def test_every_reader_takes_what_is_compiled(line: CompiledLine, tmp_path: Path) -> None:
    spec = line.spec
    message = json_format.ParseDict(copy.deepcopy(spec), pipeline_spec_pb2.PipelineSpec())
    # A Struct in PipelineSpec takes anything: the executors are read by their own message.
    executors = spec["deploymentSpec"]["executors"]
    assert set(executors) == {c.executor_label for c in message.components.values() if c.executor_label}
    for executor in executors.values():
        json_format.ParseDict(copy.deepcopy(executor), pipeline_spec_pb2.PipelineDeploymentConfig.ExecutorSpec())
    path = tmp_path / "line.yaml"
    write_spec(spec, path)
    assert components.load_component_from_file(str(path)).component_spec.name == "shardline"
    job = aiplatform.PipelineJob(
        display_name="line",
        template_path=str(path),
        parameter_values=line.parameters,
        pipeline_root="gs://bucket/root",
        project="acme-vision",
        location="us-central1",
        credentials=AnonymousCredentials(),
    )
    assert canonical_hash(json_format.MessageToDict(job._gca_resource._pb)["pipelineSpec"]) == canonical_hash(spec)


def test_the_line_is_flat_and_stages_are_joined_by_artifacts(line: CompiledLine) -> None:
    tasks = tasks_of(line.spec)
    assert len(tasks) <= 10
    edges = set()
    for name, task in tasks.items():
        for given, value in task.get("inputs", {}).get("artifacts", {}).items():
            edges.add((value["taskOutputArtifact"]["producerTask"], name, given))
        passed = [value for value in task["inputs"]["parameters"].values() if "taskOutputParameter" in value]
        # The listing's is the one URI that is a parameter.
        assert [value["taskOutputParameter"]["producerTask"] for value in passed] == ["list-source"] * (name == "shard")
    assert edges == EDGES
    assert tasks["record"]["triggerPolicy"] == {"strategy": "ALL_UPSTREAM_TASKS_COMPLETED"}
    assert sorted(tasks["record"]["dependentTasks"]) == sorted(set(tasks) - {"record"})
    cached = {name for name, task in tasks.items() if task.get("cachingOptions", {}).get("enableCache")}
    assert cached == {"shard", "profile", "train", "export", "register"}


def test_what_is_known_when_compiling_leaves_no_task() -> None:
    tasks = tasks_of(compiled("digits-vertex", "profile=off", "register.upload=false").spec)
    assert set(tasks) == {"list-source", "shard", "train", "export", "record"}


def test_nothing_is_installed_at_start_and_every_image_of_ours_is_pinned(line: CompiledLine) -> None:
    assert "pip install" not in json.dumps(line.spec)
    for executor in line.spec["deploymentSpec"]["executors"].values():
        image = executor["container"]["image"]
        assert "@sha256:" in image or image.startswith("gcr.io/ml-pipeline/google-cloud-pipeline-components:2.22.")
    for stage in ("profile", "train", "export", "register"):
        assert all("@sha256:" in pool["container_spec"]["image_uri"] for pool in pools_of(line.spec, stage))


def test_training_feeds_the_tensorboard_that_is_configured() -> None:
    board, account = (
        "projects/123456789012/locations/us-central1/tensorboards/34",
        "a@acme-vision.iam.gserviceaccount.com",
    )
    spec = compiled("digits-vertex", f"vertex.tensorboard={board}", f"cloud.service_account={account}").spec
    for stage in ("profile", "train", "export", "register"):
        job = job_of(spec, stage)
        assert job["tensorboard"] == (board if stage == "train" else "")
        given = tasks_of(spec)[stage]["inputs"]["parameters"].get("base_output_directory")
        assert ("{{$.pipeline_job_name}}" in str(given)) == (stage == "train")
        # Vertex AI writes to the board as the account.
        assert job["service_account"] == account


def test_pools_are_one_machine_and_the_rest() -> None:
    spec = compiled("photos-h100-flex").spec
    pools = pools_of(spec, "train")
    assert [pool["replica_count"] for pool in pools] == [1, 3]
    assert [pool["replica_count"] for pool in pools_of(spec, "export")] == [1]
    machine = {"machine_type": "a3-highgpu-8g", "accelerator_type": "NVIDIA_H100_80GB", "accelerator_count": 8}
    for pool in pools:
        assert pool["machine_spec"] == machine
        assert pool["disk_spec"]["boot_disk_size_gb"] == 500
        assert {"name": "NCCL_DEBUG", "value": "INFO"} in pool["container_spec"]["env"]
    assert pools_of(spec, "export")[0]["machine_spec"]["accelerator_type"] == "NVIDIA_L4"


def test_place_and_machines_can_be_changed_at_submission() -> None:
    line = compiled("photos-a100-spot")
    assert {"region", "strategy", "max_wait", "timeout", "train_timeout"} <= set(line.parameters)
    assert set(line.parameters) == set(line.spec["root"]["inputDefinitions"]["parameters"])
    for stage in ("profile", "train", "export", "register"):
        given = tasks_of(line.spec)[stage]["inputs"]["parameters"]
        assert {"location", "strategy", "max_wait_duration", "timeout"} <= {
            name for name, value in given.items() if "componentInputParameter" in value
        }


def test_a_stage_is_given_the_keys_that_it_reads() -> None:
    values = {name: json.loads(text) for name, text in _configs(compiled()).items()}
    assert values["shard_config"]["resources"]["beam_runner"] == "dataflow"
    assert values["shard_config"]["cloud"]["images"]["cpu"] == load().cloud.images.cpu
    assert "train" not in values["shard_config"] and "sharding" not in values["train_config"]
    # Another learning rate is another training; shards and profile are KFP's to keep.
    changed = _configs(compiled("digits-vertex", "train.learning_rate=0.5"))
    assert {name for name in values if json.loads(changed[name]) != values[name]} == {"train_config", "run_config"}


def _configs(line: CompiledLine) -> dict[str, str]:
    return {name: text for name, text in line.parameters.items() if name.endswith("_config")}


def test_a_configuration_that_no_parameter_holds_is_refused_by_name() -> None:
    message = rf"the parameter \w+_config has .* characters(.|\n)*{MAX_PARAMETER:,}(.|\n)*shorten resources\.env,"
    with pytest.raises(ConfigError, match=message):
        compiled("digits-vertex", f"resources.env={json.dumps({'A': 'x' * MAX_PARAMETER})}")


def test_what_does_not_change_the_pipeline_does_not_change_its_hash() -> None:
    first = compiled().spec
    again = compiled("digits-vertex", "run.name=digits").spec
    other = compiled("digits-vertex", "resources.machine.boot_disk_gb=120").spec
    assert canonical_hash(first) == canonical_hash(again) != canonical_hash(other)


def test_the_file_is_what_was_asked_for(tmp_path: Path) -> None:
    spec = compiled().spec
    for name, read in (("a.yaml", yaml.safe_load), ("deep/b.json", json.loads)):
        write_spec(spec, tmp_path / name)
        assert canonical_hash(read((tmp_path / name).read_text())) == canonical_hash(spec)
    # A pipeline that was compiled before is replaced, nothing else.
    write_spec(spec, tmp_path / "a.yaml")
    (tmp_path / "photos.yaml").write_text("run: {name: photos}\n")
    for name in ("photos.yaml", "notes.txt"):
        with pytest.raises(ConfigError, match=r"not a compiled pipeline|another ending"):
            write_spec(spec, tmp_path / name)
    assert (tmp_path / "photos.yaml").read_text() == "run: {name: photos}\n"
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be written"):
        write_spec(spec, tmp_path / "file" / "c.yaml")
