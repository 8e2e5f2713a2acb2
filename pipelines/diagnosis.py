"""Why a run failed and what to do about it: from what the services, the stages and the containers said.

A pure function over texts. The table is ours; it goes from the most specific to the least, and a stage's own error
document wins over all of it, since a stage knows best. Which messages Vertex AI really sends for each failure was
gathered from its documentation and from issues, not from runs of ours.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from contracts.errors import EXIT_FAULT, EXIT_TRY_AGAIN, EXIT_USER_ERROR, ErrorDocument
from pipelines.google import find_quota_metrics

# What the next rung of a ladder may mend: other machines, another region, another quota.
CLIMBS = frozenset({"stockout", "quota", "preempted"})


@dataclass(frozen=True)
class Diagnosis:
    """A failure's likely cause."""

    kind: str
    cause: str
    advice: str
    exit_code: int
    evidence: str = ""
    """The text that decided."""

    @property
    def climbs(self) -> bool:
        """Whether the next rung of a ladder is worth a try."""
        return self.kind in CLIMBS


@dataclass(frozen=True)
class _Known:
    kind: str
    pattern: re.Pattern[str]
    cause: str
    advice: str
    exit_code: int


def _known(kind: str, pattern: str, cause: str, advice: str, exit_code: int) -> _Known:
    return _Known(kind, re.compile(pattern, re.IGNORECASE), cause, advice, exit_code)


_TABLE: tuple[_Known, ...] = (
    _known(
        "stockout",
        r"stockout|resource_pool_exhausted|resources are insufficient|does not have enough resources|"
        r"insufficient (resources|capacity)|no capacity|machine type temporarily unavailable|"
        r"resources? (is|are) (currently|temporarily) (un|not )available",
        "the region has no such machines left now",
        "try another region or strategy: set resources.ladder and submit with --wait, or submit again later",
        EXIT_TRY_AGAIN,
    ),
    _known(
        "quota",
        r"quota.{0,40}exceed|exceed.{0,40}quota|resource_?exhausted|quota metrics|exceeds? quota limit|"
        r"custom_model_training_\w+",
        "a quota of the project is used up in this region",
        "wait until other jobs end, or ask for more of the metric at "
        "https://console.cloud.google.com/iam-admin/quotas; `shardline plan` names all that are needed",
        EXIT_TRY_AGAIN,
    ),
    _known(
        "image",
        r"imagepullbackoff|errimagepull|failed to pull image|manifest (unknown|for .* not found)|"
        r"image .{0,200}(not found|does not exist|cannot be pulled|could not be pulled)|invalid image name|"
        r"downloadartifacts",
        "a container image cannot be pulled",
        "run `shardline images show`; build with `shardline images build`; the service agents of Vertex AI and "
        "Dataflow need Artifact Registry Reader on its repository",
        EXIT_USER_ERROR,
    ),
    _known(
        "permission",
        r"permission_?denied|permission '[^']+' denied|does not have .{0,80}(access|permission)|\b403\b|"
        r"caller does not have permission|permission to act as|serviceaccounts\.actas|access denied",
        "an account lacks a permission",
        "grant the role that docs/vertex.md lists: the jobs act as vertex.service_account, the submission as you",
        EXIT_USER_ERROR,
    ),
    _known(
        "gpu memory",
        r"cuda out of memory|outofmemoryerror|cuda error: out of memory|cublas_status_alloc_failed",
        "a GPU ran out of memory",
        "set parallel.slot_size lower, or shard the parameters (docs/parallel.md), or take larger GPUs",
        EXIT_USER_ERROR,
    ),
    _known(
        "machine memory",
        r"out-of-memory|oomkilled|out of memory|\b137\b.{0,20}sigkill|cannot allocate memory",
        "a machine ran out of memory",
        "take a machine type with more memory, or set data.num_workers and the prefetch of data lower",
        EXIT_USER_ERROR,
    ),
    _known(
        "collective timeout",
        r"watchdog caught collective operation timeout|nccl (error|timeout|operation)|"
        r"nccl(system|remote|internal)error|collective.{0,60}timed? ?out|unhandled system error, nccl",
        "a rank waited in vain for the others (NCCL)",
        "see the log of every node around that moment: the first rank that ended is the cause; run again with "
        "resources.env: {NCCL_DEBUG: INFO}; a slow first step needs a higher resources.setup_timeout_s",
        EXIT_TRY_AGAIN,
    ),
    _known(
        "preempted",
        r"preempted|preemption|evicted|spot (vm|instance).{0,40}(reclaimed|terminated)",
        "spot machines were taken away more often than Vertex AI restarts a job",
        "submit again: training goes on from its last checkpoint; or set a rung FLEX_START or STANDARD in "
        "resources.ladder",
        EXIT_TRY_AGAIN,
    ),
    _known(
        "missing bucket",
        r"specified bucket does not exist|no such bucket|bucket .{0,100}(not found|does not exist)",
        "a bucket is not there (any more)",
        "correct run.root, or make its bucket again; finished stages are found if their data is there",
        EXIT_USER_ERROR,
    ),
    _known(
        "timeout",
        r"(job|task|replica).{0,60}(timed out|exceeded.{0,20}time ?out)|timeout (was )?exceeded|deadline_?exceeded",
        "a job ran into its timeout",
        "submit again: training goes on from its last checkpoint; set resources.timeout_hours (or "
        "resources.max_cost_usd) higher",
        EXIT_TRY_AGAIN,
    ),
    _known(
        "invalid request",
        r"invalid_?argument|invalid value|not supported for machine type|unsupported|malformed",
        "a service refused what was asked of it",
        "run `shardline plan CONFIG`; correct the field that the message names",
        EXIT_USER_ERROR,
    ),
    _known(
        "unavailable",
        r"\bunavailable\b|internal error|connection (reset|refused)|internal server error|backend error|\b50[023]\b",
        "a service did not answer",
        "submit again: finished stages are reused",
        EXIT_TRY_AGAIN,
    ),
)


def diagnose(texts: Iterable[str], documents: Sequence[ErrorDocument] = ()) -> Diagnosis:
    """Return the likely cause of a failure.

    Args:
        texts: What services said, the most specific first (a CustomJob's error before its task's, before the run's).
        documents: Errors that stages left in the bucket; the first that another attempt cannot mend decides.
    """
    texts = [text for text in texts if text.strip()]
    for document in documents:
        if document.exit_code == EXIT_USER_ERROR:
            return _of_document(document, "user error", "a stage cannot work with what it was given")
    # What a service says of a failure is about its own part; a line of the table that holds for any text wins over the
    # order of the texts, since the run's own message says little more than that a task failed.
    # A place (stockout, quota, preempted) is what only a service can speak of: a stage whose message happens to have
    # such a word in it would fail in the next place too.
    told = tuple(document.message for document in documents)
    for known in _TABLE:
        for text in texts if known.kind in CLIMBS else (*texts, *told):
            if known.pattern.search(text):
                return _of_table(known, text)
    for document in documents:
        if document.exit_code == EXIT_TRY_AGAIN:
            return _of_document(document, "interrupted", "a stage was interrupted, or hung")
        return _of_document(document, "fault", "a stage failed by a fault of ours")
    return Diagnosis(
        kind="unknown",
        cause="nothing that was said is a failure known here",
        advice="see `shardline logs RUN`",
        exit_code=EXIT_FAULT,
        evidence=texts[0] if texts else "",
    )


def _of_document(document: ErrorDocument, kind: str, cause: str) -> Diagnosis:
    advice = next(
        (line.strip().removeprefix("to do: ") for line in document.message.splitlines() if "to do:" in line),
        "submit again: finished stages are reused" if document.exit_code == EXIT_TRY_AGAIN else "see the message",
    )
    return Diagnosis(kind, cause, advice, document.exit_code, document.message)


def _of_table(known: _Known, text: str) -> Diagnosis:
    cause = known.cause
    if known.kind == "quota" and (metrics := find_quota_metrics(text)):
        cause = f"{cause}: {', '.join(metrics)}"
    return Diagnosis(known.kind, cause, known.advice, known.exit_code, text)
