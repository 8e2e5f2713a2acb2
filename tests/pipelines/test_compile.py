"""What a configuration compiles to, and that Google's and KFP's own readers take it."""

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from google.auth.credentials import AnonymousCredentials
from google.cloud import aiplatform
from google.protobuf import json_format
from kfp.pipeline_spec import pipeline_spec_pb2

from components.titles import TITLES, name_of
from contracts.canonical import canonical_hash
from contracts.config import STAGES
from contracts.config.load import load_config
from contracts.errors import ConfigError
from pipelines.graph.compile import write_spec
from tests.golden.write_lines import CONFIGS, ROOT, compiled, golden_path
from tests.pipelines.compiled import compile_config
from tests.pipelines.images import REGISTERED

JOB = "custom-training-job"

EDGES = {
    ("shard", "profile", "shards"),
    ("shard", "train", "shards"),
    ("shard", "export", "shards"),
    ("profile", "train", "profile"),
    ("train", "export", "checkpoint"),
}


def stage_edges(tasks: dict[str, Any]) -> set[tuple[str, str, str]]:
    """Return producer, consumer and parameter of each value that passes between stages."""
    return {
        (value["taskOutputParameter"]["producerTask"], name, parameter)
        for name, task in tasks.items()
        if name in STAGES
        for parameter, value in task["inputs"]["parameters"].items()
        if value.get("taskOutputParameter", {}).get("producerTask") in STAGES
    }


def load(name: str = "digits-vertex", *overrides: str) -> Any:
    return load_config(ROOT / "configs" / f"{name}.yaml", [*REGISTERED, *overrides])


@pytest.fixture(scope="module", params=CONFIGS)
def golden(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """Name of a configuration, and what it compiles to: the golden file says so, and `compiled` still does."""
    found = compiled(request.param)
    expected = json.loads(golden_path(request.param).read_text())
    assert found == expected, "a wanted change? python -m tests.golden.write_lines"
    return request.param, found


def all_tasks(spec: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return every task by the path of the pipelines that it stands in."""
    found: dict[str, dict[str, Any]] = {}

    def walk(dag: dict[str, Any], place: str) -> None:
        for name, task in dag["tasks"].items():
            found[place + name] = task
            inner = spec["components"][task["componentRef"]["name"]]
            if "dag" in inner:
                walk(inner["dag"], f"{place}{name}/")

    walk(spec["root"]["dag"], "")
    return found


def worker_pools(spec: dict[str, Any], stage: str) -> list[dict[str, Any]]:
    (job,) = (task for path, task in all_tasks(spec).items() if f"{stage}/" in path and path.endswith(JOB))
    pools: list[dict[str, Any]] = job["inputs"]["parameters"]["worker_pool_specs"]["runtimeValue"]["constant"]
    return pools


def test_every_reader_takes_what_is_compiled(golden: tuple[str, dict[str, Any]], tmp_path: Path) -> None:
    name, found = golden
    spec = found["spec"]
    message = json_format.ParseDict(copy.deepcopy(spec), pipeline_spec_pb2.PipelineSpec())
    # A Struct in PipelineSpec takes anything: the executors are read by their own message.
    executors = spec["deploymentSpec"]["executors"]
    assert set(executors) == {c.executor_label for c in message.components.values() if c.executor_label}
    for executor in executors.values():
        json_format.ParseDict(copy.deepcopy(executor), pipeline_spec_pb2.PipelineDeploymentConfig.ExecutorSpec())
    path = tmp_path / f"{name}.yaml"
    write_spec(spec, path)
    job = aiplatform.PipelineJob(
        display_name=name,
        template_path=str(path),
        parameter_values=found["parameters"],
        pipeline_root="gs://bucket/root",
        project="acme-vision",
        location="us-central1",
        credentials=AnonymousCredentials(),
    )
    assert canonical_hash(json_format.MessageToDict(job._gca_resource._pb)["pipelineSpec"]) == canonical_hash(spec)


def test_nothing_is_installed_at_start_and_every_image_of_ours_is_pinned(golden: tuple[str, dict[str, Any]]) -> None:
    spec = golden[1]["spec"]
    assert "pip install" not in json.dumps(spec)
    for executor in spec["deploymentSpec"]["executors"].values():
        if "container" in executor:
            image = executor["container"]["image"]
            assert "@sha256:" in image or image.startswith("gcr.io/ml-pipeline/google-cloud-pipeline-components:2.22.")
    for stage in ("profile", "train", "export"):
        assert all("@sha256:" in pool["container_spec"]["image_uri"] for pool in worker_pools(spec, stage))


def test_nothing_is_cached_or_tried_again_by_kfp(golden: tuple[str, dict[str, Any]]) -> None:
    for path, task in all_tasks(golden[1]["spec"]).items():
        # Conditions and exit handlers have no option.
        assert not task.get("cachingOptions", {}).get("enableCache"), path
        assert "retryPolicy" not in task, path


def test_every_task_has_a_title_that_leads_back_to_its_name(golden: tuple[str, dict[str, Any]]) -> None:
    for path, task in all_tasks(golden[1]["spec"]).items():
        name, title = path.rpartition("/")[2], task["taskInfo"]["name"]
        if "condition" in task.get("triggerPolicy", {}) or name == "exit-handler-1":
            # A group: kfp takes its title from the pipeline's text.
            continue
        assert title == TITLES[name] != name, path
        assert name_of(title) == name_of(name) == name
    assert len(set(TITLES.values())) == len(TITLES)
    assert all(re.fullmatch("[A-Za-z ]{4,40}", title) for title in TITLES.values())


def test_training_feeds_the_tensorboard_that_is_configured() -> None:
    board, account = (
        "projects/123456789012/locations/us-central1/tensorboards/34",
        "a@acme-vision.iam.gserviceaccount.com",
    )
    given = (f"vertex.tensorboard={board}", f"cloud.service_account={account}")
    tasks = all_tasks(compile_config(load("digits-vertex", *given)).spec)
    for path, task in tasks.items():
        if not path.endswith(JOB):
            continue
        said = {
            name: found["runtimeValue"]["constant"]
            for name, found in task["inputs"]["parameters"].items()
            if "runtimeValue" in found
        }
        # Vertex AI fills AIP_TENSORBOARD_LOG_DIR from the folder, and writes to the board as the account.
        assert said["tensorboard"] == (board if path.startswith("train/") else "")
        assert said["service_account"] == account
        assert "/runs/" in said["base_output_directory"]


def test_both_graphs_have_the_same_stages_and_edges(golden: tuple[str, dict[str, Any]]) -> None:
    spec = golden[1]["spec"]
    dag = spec["root"]["dag"]
    handlers = [name for name in dag["tasks"] if name.startswith("exit-handler")]
    if handlers:
        assert "vertex-pipelines-notification-email" in dag["tasks"]
        dag = spec["components"][dag["tasks"][handlers[0]]["componentRef"]["name"]]["dag"]
    assert sorted(dag["tasks"]) == sorted([*STAGES, "begin", "register", "record"])
    assert stage_edges(dag["tasks"]) == EDGES
    record = dag["tasks"]["record"]
    assert record["triggerPolicy"] == {"strategy": "ALL_UPSTREAM_TASKS_COMPLETED"}
    assert sorted(record["dependentTasks"]) == sorted([*STAGES, "begin", "register"])


def test_arguments_are_items_of_their_own(golden: tuple[str, dict[str, Any]]) -> None:
    for stage in ("profile", "train", "export"):
        for pool in worker_pools(golden[1]["spec"], stage):
            for argument in pool["container_spec"]["args"]:
                # A value that is known only at run time is replaced where it is a whole item.
                assert "{{$" not in argument or (argument.startswith("{{$") and argument.endswith("}}"))


def test_pools_are_one_machine_and_the_rest() -> None:
    spec = compiled("photos-h100-flex")["spec"]
    pools = worker_pools(spec, "train")
    assert [pool["replica_count"] for pool in pools] == [1, 3]
    assert [pool["replica_count"] for pool in worker_pools(spec, "export")] == [1]
    machine = {"machine_type": "a3-highgpu-8g", "accelerator_type": "NVIDIA_H100_80GB", "accelerator_count": 8}
    for pool in pools:
        assert pool["machine_spec"] == machine
        assert pool["disk_spec"]["boot_disk_size_gb"] == 500
        assert {"name": "NCCL_DEBUG", "value": "INFO"} in pool["container_spec"]["env"]
    assert worker_pools(spec, "export")[0]["machine_spec"]["accelerator_type"] == "NVIDIA_L4"


def test_the_region_is_a_parameter_and_all_have_values() -> None:
    line = compile_config(load("photos-a100-spot"))
    assert line.parameters["region"] == "us-central1"
    assert set(line.parameters) == set(line.spec["root"]["inputDefinitions"]["parameters"])


def test_a_stage_is_given_its_own_sections_by_uri_and_hash() -> None:
    import hashlib

    line = compile_config(load())
    for stage in STAGES:
        uri, _, sha256 = line.parameters[f"{stage}_config"].partition("@sha256:")
        content = line.documents[uri]
        assert hashlib.sha256(content).hexdigest() == sha256
    shard = json.loads(line.documents[line.parameters["shard_config"].partition("@")[0]])
    assert shard["resources"]["beam_runner"] == "dataflow"
    assert shard["cloud"]["images"]["pipeline"] == load().cloud.images.pipeline
    assert "train" not in shard


def test_what_does_not_change_the_pipeline_does_not_change_its_hash() -> None:
    first = compile_config(load()).spec
    again = compile_config(load("digits-vertex", "run.name=digits")).spec
    other = compile_config(load("digits-vertex", "resources.machine.boot_disk_gb=120")).spec
    assert canonical_hash(first) == canonical_hash(again) != canonical_hash(other)


def test_a_value_with_quotes_and_lines_is_kept() -> None:
    text = 'say "hi"\nand \\ go'
    config = load("digits-vertex", f"resources.env={json.dumps({'GREETING': text})}")
    (env,) = worker_pools(compile_config(config).spec, "train")[0]["container_spec"]["env"]
    assert env == {"name": "GREETING", "value": text}


def test_the_model_is_not_uploaded_where_nobody_wants_it() -> None:
    spec = compile_config(load("digits-vertex", "vertex.model.upload=false")).spec
    assert "register" not in spec["root"]["dag"]["tasks"]
    assert "model-upload" not in json.dumps(spec)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("run.root=runs", "run.root"),
        ("sharding.source=raw/digits", "sharding.source"),
        ("cloud.project=", "cloud.project"),
        ("resources.machine.type=n1-standard-5", "n1-standard-5"),
        ("cloud.images.trainer=a.io/b:latest", "not pinned"),
    ],
)
def test_what_cannot_run_is_refused(override: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words.replace(".", r"\.")):
        compile_config(load("digits-vertex", override))


def test_the_file_is_what_was_asked_for(tmp_path: Path) -> None:
    spec = compile_config(load()).spec
    for name, read in (("a.yaml", yaml.safe_load), ("deep/b.json", json.loads)):
        write_spec(spec, tmp_path / name)
        assert canonical_hash(read((tmp_path / name).read_text())) == canonical_hash(spec)
    # A pipeline that was compiled before is replaced, nothing else.
    write_spec(spec, tmp_path / "a.yaml")
    (tmp_path / "photos.yaml").write_text("run: {name: photos}\n")
    for name in ("photos.yaml", "notes.txt"):
        with pytest.raises(ConfigError, match=r"no compiled pipeline|another ending"):
            write_spec(spec, tmp_path / name)
    assert (tmp_path / "photos.yaml").read_text() == "run: {name: photos}\n"
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be written"):
        write_spec(spec, tmp_path / "file" / "c.yaml")
