import pytest

from contracts.errors import ErrorDocument
from pipelines.diagnosis import diagnose

# The run's own message comes with every failure, and says nothing.
VOID = (
    "The DAG failed because some tasks failed. The failed tasks are: [train].; Job (project_id = p, job_id = 1) failed."
)

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
    "image": [
        'Failed to pull image "us-docker.pkg.dev/p/r/trainer@sha256:12": manifest unknown',
        "Back-off: ImagePullBackOff",
        "Image us-docker.pkg.dev/p/r/trainer:latest not found.",
        "Permission 'artifactregistry.repositories.downloadArtifacts' denied on resource",
    ],
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
    "collective timeout": 75,
    "timeout": 75,
    "unavailable": 75,
    "permission": 2,
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


def test_only_places_are_climbed_for() -> None:
    assert {kind for kind, texts in MESSAGES.items() if diagnose(texts).climbs} == {"stockout", "quota", "preempted"}


def test_the_quota_that_is_used_up_is_named() -> None:
    assert "custom_model_training_nvidia_a100_gpus" in diagnose(MESSAGES["quota"]).cause


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
    assert (found.kind, found.exit_code, found.climbs) == ("fault", 70, False)
    assert diagnose([MESSAGES[kind][0], VOID], [document]).kind == kind


def test_what_is_not_known_is_said_so() -> None:
    found = diagnose(["", VOID])
    assert (found.kind, found.exit_code, found.evidence) == ("unknown", 70, VOID)
