"""Pipelines for tests. (kfp reads annotations as they are: no `from __future__ import annotations` here.)"""

from google_cloud_pipeline_components.v1.custom_job import CustomTrainingJobOp
from google_cloud_pipeline_components.v1.wait_gcp_resources import WaitGcpResourcesOp
from kfp import dsl

IMAGE = "europe-west4-docker.pkg.dev/acme/images/any@sha256:" + "0" * 64

# Writes its arguments as JSON to the first one.
SAY = """
import json, os, sys
os.makedirs(os.path.dirname(sys.argv[1]), exist_ok=True)
open(sys.argv[1], "w").write(json.dumps(sys.argv[2:]))
"""
# Writes the second argument to the first one.
WRITE = """
import os, sys
os.makedirs(os.path.dirname(sys.argv[1]), exist_ok=True)
open(sys.argv[1], "w").write(sys.argv[2])
"""
PLACES = [
    dsl.PIPELINE_JOB_NAME_PLACEHOLDER,
    dsl.PIPELINE_JOB_RESOURCE_NAME_PLACEHOLDER,
    dsl.PIPELINE_JOB_ID_PLACEHOLDER,
    dsl.PIPELINE_JOB_CREATE_TIME_UTC_PLACEHOLDER,
    dsl.PIPELINE_JOB_SCHEDULE_TIME_UTC_PLACEHOLDER,
    dsl.PIPELINE_TASK_NAME_PLACEHOLDER,
    dsl.PIPELINE_TASK_ID_PLACEHOLDER,
    dsl.PIPELINE_ROOT_PLACEHOLDER,
    "{{$.pipeline_google_cloud_project_id}}",
    "{{$.pipeline_google_cloud_location}}",
    "{{$.pipeline_persistent_resource_id}}",
    "{{$.pipeline_service_account}}",
]


@dsl.container_component
def say(heard: dsl.OutputPath(str), text: str = "", number: int = 0, struct: dict = {}):  # noqa: B006
    return dsl.ContainerSpec(image=IMAGE, command=["python3", "-c", SAY], args=[heard, text, number, struct])


@dsl.container_component
def write(value: str, out: dsl.OutputPath(str)):
    return dsl.ContainerSpec(image=IMAGE, command=["python", "-c", WRITE], args=[out, value])


@dsl.container_component
def fail(code: int):
    return dsl.ContainerSpec(image=IMAGE, command=["sh", "-c", 'echo "what went wrong"; exit "$0"'], args=[code])


@dsl.container_component
def final(status: dsl.PipelineTaskFinalStatus, heard: dsl.OutputPath(str)):
    return dsl.ContainerSpec(
        image=IMAGE,
        command=["python3", "-c", WRITE],
        args=[heard, "{{$.inputs.parameters['status']}}"],
    )


@dsl.container_component
def sleep(pid_file: str):
    # A process below it that would outlive it: in a session of its own, deaf to SIGTERM.
    script = 'setsid sh -c "trap : TERM; echo \\$\\$ > $0.deep; while :; do sleep 1; done" & echo $$ > "$0"; sleep 600'
    return dsl.ContainerSpec(image=IMAGE, command=["sh", "-c", script], args=[pid_file])


@dsl.container_component
def make_text(text: str, made: dsl.Output[dsl.Artifact]):
    return dsl.ContainerSpec(image=IMAGE, command=["python3", "-c", WRITE], args=[made.path, text])


@dsl.container_component
def read_text(made: dsl.Input[dsl.Artifact], heard: dsl.OutputPath(str)):
    read = f"{WRITE}\nimport json; open(sys.argv[1], 'w').write(json.dumps([open(sys.argv[2]).read(), *sys.argv[3:]]))"
    return dsl.ContainerSpec(image=IMAGE, command=["python3", "-c", read], args=[heard, made.path, made.uri, "{{$}}"])


@dsl.container_component
def flaky(marker: str):
    return dsl.ContainerSpec(
        image=IMAGE,
        command=["sh", "-c", 'echo "$CLOUD_ML_JOB_ID" >> "$0.jobs"; test -e "$0" || { touch "$0"; exit 3; }'],
        args=[marker],
    )


@dsl.container_component
def fail_to_write(out: dsl.OutputPath(str)):
    return dsl.ContainerSpec(image=IMAGE, command=["sh", "-c", "true"], args=[out])


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def python_component(
    made: dsl.Input[dsl.Artifact], report: dsl.Output[dsl.Markdown], metrics: dsl.Output[dsl.Metrics]
) -> str:
    with open(made.path) as stream:
        text = stream.read()
    with open(report.path, "w") as stream:
        stream.write(f"# {text}")
    metrics.log_metric("letters", len(text))
    return text.upper()


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def measure(count: int, metrics: dsl.Output[dsl.Metrics]):
    for number in range(count):
        metrics.log_metric(f"metric {number}", number)


@dsl.pipeline(name="values")
def values(text: str, number: int):
    say(
        text=f"a python3 of {text}",
        number=number,
        struct={"args": ["--x", f"{text}", 1.0], "count": 2, "nested": {"text": f"is {text}!"}},
    )


@dsl.pipeline(name="inner")
def inner(text: str):
    say(text=f"inside: {text}")


@dsl.pipeline(name="nested")
def nested(text: str):
    given = write(value=text)
    inner(text=f"from outside: {given.outputs['out']} in {dsl.PIPELINE_JOB_NAME_PLACEHOLDER}")


@dsl.container_component
def say_places(heard: dsl.OutputPath(str)):
    return dsl.ContainerSpec(image=IMAGE, command=["python3", "-c", SAY], args=[heard, *PLACES])


@dsl.pipeline(name="places")
def places():
    say_places()


@dsl.pipeline(name="unreadable")
def unreadable(marker: str):
    asked = fail_to_write()
    with dsl.If(asked.outputs["out"] == "true"):
        flaky(marker=marker)


@dsl.pipeline(name="failing")
def failing():
    end = final()
    with dsl.ExitHandler(end):
        bad = fail(code=7)
        never = write(value="never").after(bad)
        other = write(value="other")
        # As the line writes its record.
        say(text=other.outputs["out"], number=0, struct={}).after(never).ignore_upstream_failure()


@dsl.pipeline(name="fast")
def fast():
    with dsl.ExitHandler(final()):
        bad = fail(code=1)
        always = write(value="always").after(bad).ignore_upstream_failure()
        write(value="what always comes after a success").after(always)


@dsl.pipeline(name="artifacts")
def artifacts(text: str):
    made = make_text(text=text)
    read_text(made=made.outputs["made"])
    python_component(made=made.outputs["made"])


@dsl.pipeline(name="measured")
def measured(few: int, many: int):
    measure(count=few).set_display_name("few")
    measure(count=many).set_display_name("many")


@dsl.pipeline(name="imported")
def imported(uri: str, image: str):
    model = dsl.importer(
        artifact_uri=uri,
        artifact_class=dsl.Artifact,
        metadata={"containerSpec": {"imageUri": image, "ports": [{"port": 8000}]}},
    )
    read_text(made=model.output)


@dsl.pipeline(name="long")
def long(pid_file: str):
    sleep(pid_file=pid_file)


@dsl.pipeline(name="trained")
def trained(code: str, text: str, folder: str, strategy: str):
    CustomTrainingJobOp(
        display_name="train-digits",
        project="{{$.pipeline_google_cloud_project_id}}",
        location="{{$.pipeline_google_cloud_location}}",
        worker_pool_specs=[
            {
                "machine_spec": {
                    "machine_type": "g2-standard-12",
                    "accelerator_type": "NVIDIA_L4",
                    "accelerator_count": 1,
                },
                "replica_count": 1,
                "disk_spec": {"boot_disk_type": "pd-ssd", "boot_disk_size_gb": 200},
                "container_spec": {
                    "image_uri": IMAGE,
                    "command": ["python", "-c"],
                    "args": [code, folder, f"given: {text}"],
                    "env": [{"name": "VALUE", "value": text}],
                },
            }
        ],
        base_output_directory="gs://line/out",
        strategy=strategy,
        restart_job_on_worker_restart=True,
    )


@dsl.container_component
def launch(config: str, output: str, gcp_resources: dsl.OutputPath(str)):
    return dsl.ContainerSpec(
        image=IMAGE,
        command=["python", "-m", "sharding.task"],
        args=["--config-json", config, "--output", output, "--launch", gcp_resources],
    )


@dsl.pipeline(name="sharded")
def sharded(config: str, output: str):
    launched = launch(config=config, output=output)
    WaitGcpResourcesOp(gcp_resources=launched.outputs["gcp_resources"])


@dsl.container_component
def launch_and_hang(resource: str, marker: str, gcp_resources: dsl.OutputPath(str)):
    # What is killed before it can cancel what it has started.
    code = f"{WRITE}\nimport signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    code += "; open(sys.argv[3], 'w').close(); time.sleep(600)"
    return dsl.ContainerSpec(image=IMAGE, command=["python", "-c", code], args=[gcp_resources, resource, marker])


@dsl.pipeline(name="hanging")
def hanging(resource: str, marker: str):
    launch_and_hang(resource=resource, marker=marker)
