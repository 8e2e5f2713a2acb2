"""Known failures of a run: how each is recognised, its likely cause, what to do, and the exit code.

A service is understood by the code of its answer (google.rpc.Code), by the reason in it, and by sentences that only
that service writes; never by digits or single words, which a stage's own message may have too. Failures of a machine's
software (CUDA, NCCL, the disk) are understood by the texts of these libraries, whoever repeats them. The wording of
Vertex AI was gathered from its documentation and from issues, not from runs of ours.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from contracts.errors import EXIT_TRY_AGAIN, EXIT_USER_ERROR

# google.rpc.Code: https://github.com/googleapis/googleapis/blob/master/google/rpc/code.proto
INVALID_ARGUMENT, DEADLINE_EXCEEDED, NOT_FOUND, PERMISSION_DENIED = 3, 4, 5, 7
RESOURCE_EXHAUSTED, INTERNAL, UNAVAILABLE, UNAUTHENTICATED = 8, 13, 14, 16
CODE_NAMES = {
    "INVALID_ARGUMENT": INVALID_ARGUMENT,
    "DEADLINE_EXCEEDED": DEADLINE_EXCEEDED,
    "NOT_FOUND": NOT_FOUND,
    "PERMISSION_DENIED": PERMISSION_DENIED,
    "RESOURCE_EXHAUSTED": RESOURCE_EXHAUSTED,
    "UNAUTHENTICATED": UNAUTHENTICATED,
}
# Exceptions of Google's clients (google.api_core.exceptions), as a traceback or an error document names them.
CODE_OF_EXCEPTION = {
    "BadRequest": INVALID_ARGUMENT,
    "InvalidArgument": INVALID_ARGUMENT,
    "DeadlineExceeded": DEADLINE_EXCEEDED,
    "GatewayTimeout": DEADLINE_EXCEEDED,
    "NotFound": NOT_FOUND,
    "Forbidden": PERMISSION_DENIED,
    "PermissionDenied": PERMISSION_DENIED,
    "ResourceExhausted": RESOURCE_EXHAUSTED,
    "TooManyRequests": RESOURCE_EXHAUSTED,
    "InternalServerError": INTERNAL,
    "ServiceUnavailable": UNAVAILABLE,
    "Unauthenticated": UNAUTHENTICATED,
    "Unauthorized": UNAUTHENTICATED,
}


@dataclass(frozen=True)
class Known:
    """A failure that is recognised."""

    kind: str
    wording: re.Pattern[str] | None
    """Sentences that mean it; None: only a code does."""
    codes: frozenset[int]
    """Codes of a service's answer that mean it, where no sentence says more."""
    cause: str
    advice: str
    exit_code: int

    def reads(self, text: str) -> bool:
        """Whether a text says it."""
        return self.wording is not None and self.wording.search(text) is not None


def _known(kind: str, wording: str, cause: str, advice: str, exit_code: int, *codes: int) -> Known:
    pattern = re.compile(wording, re.IGNORECASE) if wording else None
    return Known(kind, pattern, frozenset(codes), cause, advice, exit_code)


PLACES: tuple[Known, ...] = (
    _known(
        "stockout",
        r"\bSTOCKOUT\b|ZONE_RESOURCE_POOL_EXHAUSTED|resources are insufficient in region|"
        r"does not have enough resources available|insufficient capacity in|machine type temporarily unavailable|"
        r"required resources? (?:is|are) (?:currently |temporarily )?(?:un|not )available",
        "the region has no such machines left now",
        "try another region: set resources.regions and submit with --wait, or submit again later",
        EXIT_TRY_AGAIN,
    ),
    _known(
        "preempted",
        r"\b(?:was|were|been) preempted\b|instance was preempted|compute\.instances\.preempted",
        "spot machines were taken away more often than Vertex AI restarts a job",
        "submit again: training goes on from its last checkpoint; or set resources.strategy to FLEX_START or STANDARD",
        EXIT_TRY_AGAIN,
    ),
    _known(
        "quota queue",
        r"queued (?:due to|because of|for) (?:insufficient |the )?quota|waiting for quota",
        "the job is queued until the project has quota for it",
        "wait until other jobs end, or ask for more at https://console.cloud.google.com/iam-admin/quotas; "
        "`shardline plan` names the metrics",
        EXIT_TRY_AGAIN,
    ),
    _known(
        "concurrent builds",
        r"cloudbuild\.googleapis\.com/concurrent|concurrent builds? (?:quota|limit)",
        "Cloud Build runs as many builds as the project may have at once",
        "wait until other builds end, or build with `shardline images build --with docker`",
        EXIT_TRY_AGAIN,
    ),
    _known(
        "build region",
        r"due to quota restrictions, cannot run builds in this region",
        "Cloud Build runs no builds of this project in this region",
        "build in a region without that restriction (https://docs.cloud.google.com/build/docs/locations), or with "
        "`shardline images build --with docker`",
        EXIT_USER_ERROR,
    ),
    _known(
        "quota",
        r"quota metrics? exceed quota limits?|exceeds? quota limits?|quota exceeded for quota metric|"
        r"quota '[A-Z0-9_]+' exceeded",
        "a quota of the project is used up in this region",
        "wait until other jobs end, or ask for more of the metric at https://console.cloud.google.com/iam-admin/quotas",
        EXIT_TRY_AGAIN,
        RESOURCE_EXHAUSTED,
    ),
)
"""What only a service can speak of; another place may mend most of it."""

MACHINES: tuple[Known, ...] = (
    _known(
        "gpu memory",
        r"CUDA out of memory|CUDA error: out of memory|CUBLAS_STATUS_ALLOC_FAILED",
        "a GPU ran out of memory",
        "set parallel.slot_size lower, or shard the parameters (docs/parallel.md), or take larger GPUs",
        EXIT_USER_ERROR,
    ),
    _known(
        "driver too old",
        r"NVIDIA driver on your system is too old|CUDA driver version is insufficient for CUDA runtime|"
        r"cudaErrorInsufficientDriver|unsatisfied condition: cuda\s*>=|provided PTX was compiled with an unsupported",
        "the machine's NVIDIA driver is older than the CUDA version of the image needs",
        "build images on an earlier CUDA version (docs/images.md), or take machines with a newer driver",
        EXIT_USER_ERROR,
    ),
    _known(
        "no kernel image",
        r"no kernel image is available for execution on the device|cudaErrorNoKernelImageForDevice|"
        r"is not compatible with the current PyTorch installation",
        "PyTorch in the image has no code for this GPU's architecture",
        "take a GPU that the image supports (`shardline plan` knows), or build the image with another PyTorch",
        EXIT_USER_ERROR,
    ),
    _known(
        "disk full",
        r"no space left on device|replicas? (?:is |are )?low on disk space|disk quota exceeded",
        "a machine's disk is full",
        "set resources.machine.boot_disk_gb higher, or data.cache_bytes lower; of sharding, target_shard_bytes lower",
        EXIT_USER_ERROR,
    ),
    _known(
        "machine memory",
        r"\bran out-of-memory\b|\bOOMKilled\b|cannot allocate memory|DataLoader worker .{0,40}killed by signal: Killed",
        "a machine ran out of memory",
        "take a machine type with more memory, or set data.num_workers and the prefetch of data lower",
        EXIT_USER_ERROR,
    ),
    _known(
        "collective timeout",
        r"watchdog caught collective operation timeout|NCCL error|nccl(?:System|Remote|Internal)Error",
        "a rank waited in vain for the others (NCCL)",
        "see the log of every node around that moment: the first rank that ended is the cause; run again with "
        "resources.env: {NCCL_DEBUG: INFO}; a slow first step needs a higher resources.setup_timeout_s",
        EXIT_TRY_AGAIN,
    ),
    _known(
        "missing bucket",
        r"the specified bucket does not exist|there is no such bucket",
        "a bucket is not there (any more)",
        "correct run.root, or make its bucket again; finished stages are found if their data is there",
        EXIT_USER_ERROR,
    ),
)
"""What libraries on a machine say: whoever repeats it, a service, a log or an error document."""

SERVICES: tuple[Known, ...] = (
    _known(
        "api not enabled",
        r"has not been used in project \S+ before or it is disabled|\bSERVICE_DISABLED\b",
        "an API of Google Cloud is not enabled in the project, or was enabled minutes ago",
        "enable it (deploy/terraform/project does), wait some minutes, then submit again",
        EXIT_USER_ERROR,
    ),
    _known(
        "image not found",
        r"\bmanifest (?:unknown|for \S+ not found)|\bimage \S+ (?:was )?(?:not found|does not exist)|"
        r"invalid image name",
        "a container image is not there",
        "build with `shardline images build`, and submit what it recorded",
        EXIT_USER_ERROR,
    ),
    _known(
        "image",
        r"\bImagePullBackOff\b|\bErrImagePull\b|failed to pull image|artifactregistry\.repositories\.downloadArtifacts|"
        r"\bimage \S+ (?:cannot|could not) be pulled",
        "a container image cannot be pulled",
        "the service agents of Vertex AI and Dataflow need Artifact Registry Reader on its repository",
        EXIT_USER_ERROR,
    ),
    _known(
        "permission",
        r"permission '[^']+' denied|permission to act as|iam\.serviceAccounts\.actAs|"
        r"does not have (?:\w+\.){2,}\w+ (?:access|permission)|the caller does not have permission",
        "an account lacks a permission",
        "grant what deploy/terraform/project lists: jobs act as cloud.service_account, the submission as you",
        EXIT_USER_ERROR,
        PERMISSION_DENIED,
        UNAUTHENTICATED,
    ),
    _known(
        "timeout",
        r"\bjob timed out\b|exceeded the timeout of|\btimeout (?:was )?exceeded\b",
        "a job ran into its timeout",
        "submit again: training goes on from its last checkpoint; set resources.timeout_hours (or "
        "resources.max_cost_usd) higher",
        EXIT_TRY_AGAIN,
        DEADLINE_EXCEEDED,
    ),
    _known(
        "invalid request",
        r"is not supported for machine type",
        "a service refused what was asked of it",
        "see what `shardline plan` says; correct the field that the message names",
        EXIT_USER_ERROR,
        INVALID_ARGUMENT,
    ),
    _known(
        "unavailable",
        r"internal error (?:occurred|encountered)|the service is (?:currently )?unavailable|backend error",
        "a service did not answer",
        "submit again: finished stages are reused",
        EXIT_TRY_AGAIN,
        INTERNAL,
        UNAVAILABLE,
    ),
)
"""What else a service answers."""
