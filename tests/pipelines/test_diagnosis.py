from collections.abc import Sequence

import pytest

from contracts.errors import ErrorDocument
from pipelines.runs.diagnosis import Diagnosis, Said
from pipelines.runs.diagnosis import diagnose as diagnose_said

# The run's own message comes with every failure, and says nothing.
VOID = (
    "The DAG failed because some tasks failed. The failed tasks are: [train].; Job (project_id = p, job_id = 1) failed."
)


def diagnose(texts: Sequence[str], documents: Sequence[ErrorDocument] = ()) -> Diagnosis:
    """Diagnose texts of which no code is known."""
    return diagnose_said([Said(text) for text in texts], documents)


MESSAGES = {
    "stockout": [
        "Resources are insufficient in region: us-central1. Please try a different region or use another accelerator.",
        "The zone 'projects/p/zones/us-central1-a' does not have enough resources available to fulfill the request.",
        "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS",
        "Machine type temporarily unavailable, please deploy with a different machine type or retry.",
        "STOCKOUT: no spot capacity for a2-highgpu-8g",
    ],
    "quota": [
        "These quota metrics exceed quota limits: aiplatform.googleapis.com/custom_model_training_nvidia_a100_gpus",
        "RESOURCE_EXHAUSTED: Quota 'NVIDIA_L4_GPUS' exceeded. Limit: 0.0 in region us-east4.",
        "Quota exceeded for quota metric 'Custom model training preemptible T4 GPUs per region'",
    ],
    "permission": [
        "Permission 'aiplatform.customJobs.create' denied on resource '//aiplatform.googleapis.com/projects/p'",
        "runner@p.iam.gserviceaccount.com does not have storage.objects.get access to the Google Cloud Storage object.",
        "You do not have permission to act as service_account: runner@p.iam.gserviceaccount.com",
        "code: PERMISSION_DENIED, message: The caller does not have permission",
    ],
    "api not enabled": [
        "403 Dataflow API has not been used in project 123456 before or it is disabled. Enable it, then retry.",
        "googleapiclient.errors.HttpError: reason: SERVICE_DISABLED",
    ],
    "image": [
        'Failed to pull image "us-docker.pkg.dev/p/r/trainer@sha256:12": denied',
        "Back-off: ImagePullBackOff",
        "Permission 'artifactregistry.repositories.downloadArtifacts' denied on resource",
    ],
    "image not found": [
        'Failed to pull image "us-docker.pkg.dev/p/r/trainer@sha256:12": manifest unknown',
        "Image us-docker.pkg.dev/p/r/trainer:latest not found.",
    ],
    "driver too old": [
        "RuntimeError: The NVIDIA driver on your system is too old (found version 12020).",
        "CUDA driver version is insufficient for CUDA runtime version",
        "nvidia-container-cli: requirement error: unsatisfied condition: cuda>=13.0, please update your driver",
    ],
    "no kernel image": [
        "torch.AcceleratorError: CUDA error: no kernel image is available for execution on the device",
        "Tesla V100 with CUDA capability sm_70 is not compatible with the current PyTorch installation.",
    ],
    "disk full": [
        "OSError: [Errno 28] No space left on device: '/tmp/shards/00001.tar'",
        "Replicas low on disk space: workerpool0-0",
    ],
    "quota queue": ["The job is queued due to insufficient quota."],
    "concurrent builds": ["These quota metrics exceed quota limits: cloudbuild.googleapis.com/concurrent_builds"],
    "build region": ["FAILED_PRECONDITION: due to quota restrictions, cannot run builds in this region."],
    "gpu memory": ["torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."],
    "machine memory": [
        "The replica workerpool0-0 ran out-of-memory and exited with a non-zero status of 137(SIGKILL).",
        "Container trainer was OOMKilled",
    ],
    "collective timeout": [
        "[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=42, OpType=ALLREDUCE) ran for 600 s",
        "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2006, unhandled system error",
    ],
    "preempted": ["The job was preempted more often than it may be restarted."],
    "missing bucket": ["gs://b/runs: there is no such bucket", "The specified bucket does not exist."],
    "timeout": ["The job timed out: it exceeded the timeout of 3600s.", "CustomJob: DEADLINE_EXCEEDED"],
    "invalid request": ["INVALID_ARGUMENT: NVIDIA_L4 is not supported for machine type n1-standard-8"],
    "unavailable": ["Internal error occurred. Please retry in a few minutes.", "503 The service is UNAVAILABLE"],
}
EXIT_CODES = {
    "stockout": 75,
    "quota": 75,
    "preempted": 75,
    "quota queue": 75,
    "concurrent builds": 75,
    "build region": 2,
    "image not found": 2,
    "driver too old": 2,
    "no kernel image": 2,
    "disk full": 2,
    "collective timeout": 75,
    "timeout": 75,
    "unavailable": 75,
    "permission": 2,
    "api not enabled": 2,
    "image": 2,
    "gpu memory": 2,
    "machine memory": 2,
    "missing bucket": 2,
    "invalid request": 2,
}


@pytest.mark.parametrize(("kind", "message"), [(kind, text) for kind, texts in MESSAGES.items() for text in texts])
def test_each_failure_has_its_cause(kind: str, message: str) -> None:
    found = diagnose([message, VOID])
    assert (found.kind, found.exit_code) == (kind, EXIT_CODES[kind])
    assert found.evidence == message
    assert found.advice


def test_the_quota_that_is_used_up_is_named() -> None:
    assert "custom_model_training_nvidia_a100_gpus" in diagnose(MESSAGES["quota"]).cause


@pytest.mark.parametrize(
    ("message", "permission"),
    [
        (MESSAGES["permission"][0], "aiplatform.customJobs.create"),
        (MESSAGES["permission"][1], "storage.objects.get"),
        (MESSAGES["permission"][2], "iam.serviceAccounts.actAs"),
    ],
)
def test_a_missing_permission_is_named(message: str, permission: str) -> None:
    document = ErrorDocument(kind="StorageError", exit_code=2, message=f"no permission: {message}")
    for found in (diagnose([message, VOID]), diagnose([VOID], [document])):
        assert (found.kind, found.exit_code) == ("permission", 2)
        assert f"lacks a permission: {permission}" in found.cause
        assert "deploy/terraform/project" in found.advice
    unnamed = diagnose([MESSAGES["permission"][3]])
    assert "deploy/terraform/project" in unnamed.advice


def test_a_stage_knows_best() -> None:
    document = ErrorDocument(
        kind="DataError", exit_code=2, message="no images\n  allowed: some\n  to do: check the source"
    )
    found = diagnose(["The job was preempted too often", VOID], [document])
    assert (found.kind, found.exit_code, found.advice) == ("user error", 2, "check the source")


def test_an_interrupted_stage_says_less_than_the_service() -> None:
    document = ErrorDocument(kind="Preempted", exit_code=75, message="step 40 is saved")
    assert diagnose([MESSAGES["stockout"][0]], [document]).kind == "stockout"
    assert diagnose([VOID], [document]).exit_code == 75


def test_a_fault_of_ours_ends_with_its_code() -> None:
    document = ErrorDocument(kind="AssertionError", exit_code=70, message="AssertionError: slots")
    assert diagnose([VOID], [document]).exit_code == 70


@pytest.mark.parametrize("kind", ["stockout", "quota", "preempted"])
def test_only_a_service_speaks_of_places(kind: str) -> None:
    # Another region does not mend a stage whose message happens to have such a word in it.
    document = ErrorDocument(kind="RuntimeError", exit_code=70, message=f"RuntimeError: {MESSAGES[kind][0]}")
    found = diagnose([VOID], [document])
    assert (found.kind, found.exit_code) == ("fault", 70)
    assert diagnose([MESSAGES[kind][0], VOID], [document]).kind == kind


def test_what_is_not_known_is_said_so() -> None:
    found = diagnose(["", VOID])
    assert (found.kind, found.exit_code, found.evidence) == ("unknown", 70, VOID)


# Messages of stages and of their libraries, which have a word or digits in them that a service's answer has too.
PROGRAMS = [
    ("TypeError: unsupported operand type(s) for +: 'int' and 'NoneType'", "TypeError"),
    ("RuntimeError: shape '[502, 3]' is invalid for input of size 7", "RuntimeError"),
    ("KeyError: 'layer 403'", "KeyError"),
    ("ValueError: malformed row 500: INVALID_ARGUMENT", "ValueError"),
    ("RuntimeError: permission_denied is no class; access denied to 429", "RuntimeError"),
    ("AttributeError: 'Preemption' object has no attribute 'preempted'", "AttributeError"),
]


@pytest.mark.parametrize(("message", "name"), PROGRAMS)
def test_what_a_program_says_is_no_answer_of_a_service(message: str, name: str) -> None:
    # As a stage's document, as a line of a log, and at the end of what Vertex AI says of a container.
    document = ErrorDocument(kind=name, exit_code=70, message=message)
    found = diagnose([VOID], [document])
    assert (found.kind, found.exit_code) == ("fault", 70)
    assert name in found.cause
    told = "The replica workerpool0-0 exited with a non-zero status of 1.\nTermination log message: "
    for said in (
        Said(message),
        Said(message, 3),
        Said(f"{told}\n{message}", 3),
        Said(f"{told}Traceback (most recent call last):\n  File x, line 403, in f\n{message}", 3),
    ):
        found = diagnose_said([said, Said(VOID, 9)])
        assert (found.kind, found.exit_code, name in found.cause) == ("exception", 70, True)


@pytest.mark.parametrize("message", ["step 500: loss is nan", "shape '[502, 3]'", "layer 403", "503 images"])
def test_digits_of_a_sentence_are_no_status(message: str) -> None:
    document = ErrorDocument(kind="ShardlineError", exit_code=70, message=message)
    assert diagnose([VOID], [document]).kind == "fault"
    assert (diagnose([message]).kind, diagnose([message]).exit_code) == ("unknown", 70)


@pytest.mark.parametrize(
    ("code", "kind"),
    [(3, "invalid request"), (4, "timeout"), (7, "permission"), (8, "quota"), (13, "unavailable"), (14, "unavailable")],
)
def test_the_code_of_an_answer_decides_where_no_sentence_does(code: int, kind: str) -> None:
    assert diagnose_said([Said("no", code), Said(VOID, 9)]).kind == kind


def test_the_exit_code_of_a_container_is_told_where_nothing_else_is() -> None:
    for status, code in ((2, 2), (75, 75), (1, 70), (137, 70)):
        found = diagnose_said([Said(f"The replica workerpool0-0 exited with a non-zero status of {status}.", 3)])
        assert (found.kind, found.exit_code) == ("exit", code)


def test_an_exception_of_a_client_is_what_the_service_answered() -> None:
    text = "Traceback (most recent call last):\n  ...\ngoogle.api_core.exceptions.Forbidden: 403 GET https://storage"
    assert diagnose([text]).kind == "permission"
    document = ErrorDocument(kind="Forbidden", exit_code=70, message="Forbidden: 403 GET https://storage")
    assert (diagnose([VOID], [document]).kind, diagnose([VOID], [document]).exit_code) == ("permission", 2)


def test_a_stage_that_met_a_machines_failure_names_it() -> None:
    message = "AcceleratorError: CUDA error: no kernel image is available for execution on the device"
    document = ErrorDocument(kind="AcceleratorError", exit_code=70, message=message)
    assert diagnose([VOID], [document]).kind == "no kernel image"
