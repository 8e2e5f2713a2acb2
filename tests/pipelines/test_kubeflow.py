"""The line for Kubeflow Pipelines: what KFP's own loader reads, what is refused, and that the containers run it.

No Kubernetes is asked: `launch` gives each container what KFP's launcher gives it, as launcher_v2.go writes it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from kfp import components
from typer.testing import CliRunner

from contracts import storage
from contracts.artifacts import ExportManifest, RunRecord
from contracts.errors import ConfigError
from pipelines.cli import app
from pipelines.kubeflow import compile_kubeflow
from rehearsal.gcs import BucketServer
from tests.conftest import small_config
from tests.pipelines.test_manifests import IMAGE, a_config

T4 = {"machine": {"type": "n1-standard-8", "accelerator_type": "NVIDIA_TESLA_T4"}}
RUN = "0f1e2d3c-0000-0000-0000-000000000001"


def tasks_of(spec: dict[str, Any]) -> dict[str, Any]:
    """Return the tasks inside of the exit handler."""
    tasks: dict[str, Any] = spec["components"]["comp-exit-handler-1"]["dag"]["tasks"]
    return tasks


def test_images_that_are_not_built_have_placeholders(tmp_path: Path) -> None:
    config, images = tmp_path / "photos.yaml", {"project": "acme-vision", "images": {}}
    config.write_text(yaml.safe_dump(a_config(T4, cloud=images).model_dump(mode="json", exclude_defaults=True)))
    line = ["compile", str(config), "--place", "kubeflow", "--to", str(tmp_path / "line.yaml")]
    done = CliRunner().invoke(app, line)
    assert done.exit_code == 0 and "not built yet: cloud.images.gpu is not set" in done.stderr, done.output
    done = CliRunner().invoke(app, ["manifests", str(config), "--stage", "shard"])
    assert done.exit_code == 2 and "kind: Job" not in done.stdout, done.output


def test_kfp_reads_the_line_and_its_pods_run_where_the_stages_jobs_would(tmp_path: Path) -> None:
    config = tmp_path / "photos.yaml"
    config.write_text(yaml.safe_dump(a_config(T4).model_dump(mode="json", exclude_defaults=True)))
    done = CliRunner().invoke(app, ["compile", str(config), "--place", "kubeflow", "--to", str(tmp_path / "line.yaml")])
    assert done.exit_code == 0, done.output
    line = components.load_component_from_file(str(tmp_path / "line.yaml"))
    assert line.pipeline_spec.pipeline_info.name == "photos"
    spec, platforms = yaml.safe_load_all((tmp_path / "line.yaml").read_text())
    tasks = tasks_of(spec)
    edges = {
        (given["taskOutputParameter"]["producerTask"], name, key)
        for name, task in tasks.items()
        for key, given in task["inputs"]["parameters"].items()
        if "taskOutputParameter" in given and key != "listing"
    }
    assert edges == {
        ("shard", "profile", "shards"),
        ("shard", "train", "shards"),
        ("profile", "train", "report"),
        ("shard", "export", "shards"),
        ("train", "export", "model"),
    }
    assert not any(task["cachingOptions"] for task in tasks.values())
    # Argo counts from the first start on: seven times a week, and the pauses.
    assert {task["retryPolicy"]["backoffMaxDuration"] for task in tasks.values()} == {"4233810s"}
    assert spec["root"]["dag"]["tasks"]["record"]["triggerPolicy"]["strategy"] == "ALL_UPSTREAM_TASKS_COMPLETED"
    trains = platforms["platforms"]["kubernetes"]["deploymentSpec"]["executors"]["exec-train"]
    assert trains["nodeSelector"]["labels"]["cloud.google.com/gke-accelerator"] == "nvidia-tesla-t4"
    assert {"effect": "NoSchedule", "key": "nvidia.com/gpu", "operator": "Exists"} in trains["tolerations"]
    accelerator = spec["deploymentSpec"]["executors"]["exec-train"]["container"]["resources"]["accelerator"]
    assert (accelerator["resourceType"], accelerator["resourceCount"]) == ("nvidia.com/gpu", "1")


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"resources": {"machine": {"type": "g2-standard-48"}, "nodes": 2}}, "resources.nodes = 2"),
        ({"register": {"upload": True}, "cloud": {"images": {"cpu": IMAGE, "gpu": IMAGE}}}, "register.upload"),
        ({"run": {"name": "photos", "root": "runs"}}, "gs://BUCKET"),
    ],
)
def test_what_cannot_run_is_refused(sections: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        compile_kubeflow(a_config(sections.pop("resources", {}), **sections))


def launch(spec: dict[str, Any], name: str, values: dict[str, str], outputs: Path) -> dict[str, str]:
    """Run a task's container command as a process; return its output parameters."""
    component = spec["components"][f"comp-{name}"]
    names = component.get("outputDefinitions", {}).get("parameters", {})
    # The root is the installation's: nothing of ours may lie in it.
    assert "artifacts" not in component.get("outputDefinitions", {})
    message = {
        "inputs": {"parameterValues": values},
        "outputs": {
            "parameters": {key: {"outputFile": str(outputs / name / key)} for key in names},
            "outputFile": str(outputs / name / "output_metadata.json"),
        },
    }
    container = spec["deploymentSpec"]["executors"][f"exec-{name}"]["container"]
    arguments = [json.dumps(message) if text == "{{$}}" else text for text in container["args"]]
    done = subprocess.run(
        [sys.executable, *container["command"][1:], *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return {key: (outputs / name / key).read_text() for key in names}


@pytest.mark.line
@pytest.mark.timeout(600)
def test_the_containers_make_an_engine_and_the_record(
    pictures: Path, tmp_path: Path, bucket_server: BucketServer
) -> None:
    for path in pictures.rglob("*.png"):
        storage.replace(f"gs://bucket-1/raw/{path.relative_to(pictures)}", path.read_bytes())
    sections = small_config(
        run={"name": "photos", "root": "gs://bucket-1/lines"},
        sharding={"source": "gs://bucket-1/raw"},
        profile={"method": "off"},
        parallel={"slot_size": 4},
        data={"num_workers": 0},
        export={"runtime": "onnx", "precision": "fp32"},
    )
    config = a_config({}, **sections)
    spec = next(yaml.safe_load_all(compile_kubeflow(config)))
    parameters = spec["root"]["inputDefinitions"]["parameters"]
    configs = {name.removesuffix("_config"): given["defaultValue"] for name, given in parameters.items()}
    begun = {"config": configs["run"], "run": RUN, "created_at": "2026-11-29T06:00:00Z", "scheduled_at": ""}
    results = {"list-source": launch(spec, "list-source", begun, tmp_path)}
    for name in ("shard", "train", "export"):
        values = {"config": configs[name]}
        for key, given in tasks_of(spec)[name]["inputs"]["parameters"].items():
            if "taskOutputParameter" in given:
                source = given["taskOutputParameter"]
                values[key] = results[source["producerTask"]][source["outputParameterKey"]]
            elif "runtimeValue" in given:
                values[key] = given["runtimeValue"]["constant"].replace("{{$.pipeline_job_uuid}}", RUN)
        results[name] = launch(spec, name, values, tmp_path)
    launch(spec, "record", {"config": configs["run"], "run": RUN}, tmp_path)
    assert ExportManifest.load(results["export"]["folder"]).served
    record = RunRecord.parse(storage.read_bytes("gs://bucket-1/lines/photos/run.json"), where="run.json")
    assert (record.id, record.state, record.error) == (RUN, "succeeded", "")
    assert [stage.uri for stage in record.stages if stage.name == "export"] == [results["export"]["folder"]]
    assert storage.exists(f"gs://bucket-1/lines/photos/runs/{RUN}/report.html")
