"""Pipelines for tests. (kfp reads annotations as they are: no `from __future__ import annotations` here.)"""

from google_cloud_pipeline_components.v1.custom_job import CustomTrainingJobOp
from google_cloud_pipeline_components.v1.vertex_notification_email import VertexNotificationEmailOp
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
# An executor output with an artifact that has a folder of its own, where the executor input says.
GIVE = """
import json, sys
made = {"uri": "gs://line/made", "metadata": {"text": sys.argv[2]}}
with open(json.loads(sys.argv[1])["outputs"]["outputFile"], "w") as stream:
    json.dump({"artifacts": {"made": {"artifacts": [made]}}}, stream)
"""
PLACES = [
    dsl.PIPELINE_JOB_NAME_PLACEHOLDER,
    dsl.PIPELINE_JOB_RESOURCE_NAME_PLACEHOLDER,
    dsl.PIPELINE_JOB_CREATE_TIME_UTC_PLACEHOLDER,
    dsl.PIPELINE_JOB_SCHEDULE_TIME_UTC_PLACEHOLDER,
    "{{$.pipeline_google_cloud_project_id}}",
    "{{$.pipeline_google_cloud_location}}",
    "{{$.pipeline_persistent_resource_id}}",
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
    return dsl.ContainerSpec(image=IMAGE, command=["python3", "-c", GIVE], args=["{{$}}", text])


@dsl.container_component
def read_text(made: dsl.Input[dsl.Artifact], heard: dsl.OutputPath(str)):
    return dsl.ContainerSpec(image=IMAGE, command=["python3", "-c", WRITE], args=[heard, "{{$}}"])


@dsl.container_component
def tell(said: str, metrics: dsl.Output[dsl.Metrics]):
    tell = "import json, sys; open(json.loads(sys.argv[1])['outputs']['outputFile'], 'w').write(sys.argv[2])"
    return dsl.ContainerSpec(image=IMAGE, command=["python3", "-c", tell], args=["{{$}}", said])


@dsl.pipeline(name="values")
def values(text: str, number: int):
    say(
        text=f"a python3 of {text}",
        number=number,
        struct={"args": ["--x", f"{text}", 1.0], "count": 2, "nested": {"text": f"is {text}!"}},
    )


@dsl.container_component
def say_places(heard: dsl.OutputPath(str)):
    return dsl.ContainerSpec(image=IMAGE, command=["python3", "-c", SAY], args=[heard, *PLACES])


@dsl.pipeline(name="places")
def places():
    say_places()


@dsl.pipeline(name="failing")
def failing():
    end = final()
    with dsl.ExitHandler(end):
        bad = fail(code=7)
        never = write(value="never").after(bad)
        other = write(value="other")
        # As the line writes its record.
        say(text=other.outputs["out"], number=0, struct={}).after(never).ignore_upstream_failure()


@dsl.pipeline(name="mailed")
def mailed():
    with dsl.ExitHandler(VertexNotificationEmailOp(recipients=["a@b.c", "d@e.f"])):
        write(value="well")


@dsl.pipeline(name="two")
def two(pid_file: str = ""):
    with dsl.ExitHandler(final()):
        first = sleep(pid_file=pid_file)
        say(text="b").after(first)


@dsl.pipeline(name="artifacts")
def artifacts(text: str):
    made = make_text(text=text)
    read_text(made=made.outputs["made"])


@dsl.pipeline(name="told")
def told(metadata: str, name: str):
    tell(said=f'{{"artifacts": {{"metrics": {{"artifacts": [{{"name": "{name}", "metadata": {metadata}}}]}}}}}}')


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
def launch_and_hang(resource: str, marker: str, gcp_resources: dsl.OutputPath(str)):
    # What is killed before it can cancel what it has started.
    code = f"{WRITE}\nimport signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    code += "; open(sys.argv[3], 'w').close(); time.sleep(600)"
    return dsl.ContainerSpec(image=IMAGE, command=["python", "-c", code], args=[gcp_resources, resource, marker])


@dsl.pipeline(name="hanging")
def hanging(resource: str, marker: str):
    launch_and_hang(resource=resource, marker=marker)
