"""Likely cause of a run's failure and what to do: from error documents, answers of services and logs.

A pure function. A stage's own error document wins, since a stage knows best; a place (no machines, no quota,
preemption) is what only a service can speak of. pipelines/runs/known_failures.py has the table.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from contracts.errors import EXIT_FAULT, EXIT_TRY_AGAIN, EXIT_USER_ERROR, ErrorDocument
from contracts.process import EXIT_ABORTED
from pipelines.google import find_permission, find_quota_metrics
from pipelines.runs.known_failures import CODE_NAMES, CODE_OF_EXCEPTION, MACHINES, PLACES, SERVICES, Known

# How Vertex AI says that a container ended by itself, with google.rpc's code 3; what a program printed may follow.
_REPLICA = re.compile(r"\breplica \S+ exited with a non-zero status of (\d+)")
_TRACEBACK = re.compile(r"Traceback \(most recent call last\)|Termination log message:")
# The last line of a traceback: name of an exception and its message.
_EXCEPTION = re.compile(r"\s*((?:\w+\.)*)(\w+)(?:: |$)")
_OF_GOOGLE = ("google.", "grpc.", "googleapiclient.")
_STATUS = re.compile(rf"\b({'|'.join(CODE_NAMES)})\b")


@dataclass(frozen=True)
class Said:
    """What a service or a log says of a failure."""

    text: str
    code: int = 0
    """google.rpc.Code of a service's answer; 0: it is a log's line, or the service gave none."""


@dataclass(frozen=True)
class Diagnosis:
    """A failure's likely cause."""

    kind: str
    cause: str
    advice: str
    exit_code: int
    evidence: str = ""
    """The text that decided."""


def diagnose(said: Iterable[Said], documents: Sequence[ErrorDocument] = ()) -> Diagnosis:
    """Return the likely cause of a failure.

    Args:
        said: What services and logs said, the most specific first (a CustomJob's error before its task's, before the
            run's).
        documents: Errors that stages left in the bucket; the first that another attempt cannot mend decides.
    """
    heard = [_Heard.of(item) for item in said if item.text.strip()]
    for document in documents:
        if document.exit_code == EXIT_USER_ERROR:
            if _REFUSED.reads(document.message) and find_permission(document.message):
                return _of_table(_REFUSED, document.message)
            return _of_document(document, "user error", "a stage cannot work with what it was given")
    # A row that holds for any text wins over the order of the texts: the run's own message says little more than that
    # a task failed.
    for known in PLACES:
        for item in heard:
            if item.is_place(known):
                return _of_table(known, item.text)
    for document in documents:
        if document.exit_code not in (EXIT_USER_ERROR, EXIT_TRY_AGAIN):
            return _of_fault(document)
    for known in (*MACHINES, *SERVICES):
        for item in heard:
            if item.means(known):
                return _of_table(known, item.text)
    for document in documents:
        return _of_document(document, "interrupted", "a stage was interrupted, or hung")
    for item in heard:
        if item.exception:
            return Diagnosis("exception", f"the code ended with {item.exception}", _LOGS, EXIT_FAULT, item.text)
    for item in heard:
        if item.status is not None:
            code = _EXIT_CODES.get(item.status, EXIT_FAULT)
            return Diagnosis("exit", f"a container ended with exit code {item.status}", _LOGS, code, item.text)
    evidence = heard[0].text if heard else ""
    return Diagnosis("unknown", "nothing that was said is a failure known here", _LOGS, EXIT_FAULT, evidence)


_REFUSED = next(known for known in SERVICES if known.kind == "permission")
_LOGS = "see `shardline logs RUN`"
# What a stage asks for by its exit code; on Vertex AI another attempt is 134 (contracts/process.py).
_EXIT_CODES = {EXIT_USER_ERROR: EXIT_USER_ERROR, EXIT_TRY_AGAIN: EXIT_TRY_AGAIN, EXIT_ABORTED: EXIT_TRY_AGAIN}


@dataclass(frozen=True)
class _Heard:
    """A text in its parts: a service's words, its code, and what a program printed."""

    text: str
    service: str
    """What the service itself says; empty: a program printed all of it."""
    codes: frozenset[int]
    status: int | None
    """With which a container ended; None: the text says nothing of it."""
    exception: str
    """Name of an exception of a program's; empty: none."""

    @classmethod
    def of(cls, said: Said) -> _Heard:
        cut = _TRACEBACK.search(said.text)
        service = said.text[: cut.start()] if cut else said.text
        codes, exception = {said.code}, ""
        for line in said.text.splitlines():
            if (match := _EXCEPTION.match(line)) is None:
                continue
            module, name = match.groups()
            if module.startswith(_OF_GOOGLE):
                if name in CODE_OF_EXCEPTION:
                    # A client's exception repeats what a service answered.
                    service, codes = f"{service}\n{line}", codes | {CODE_OF_EXCEPTION[name]}
            elif name.endswith(("Error", "Exception")):
                exception = name
                if cut is None:
                    service, codes = "", set()
        replica = _REPLICA.search(service)
        if replica is not None:
            # The code says no more than that.
            codes = set()
        codes |= {CODE_NAMES[name] for name in _STATUS.findall(service)}
        return cls(said.text, service, frozenset(codes), int(replica.group(1)) if replica else None, exception)

    def is_place(self, known: Known) -> bool:
        return known.reads(self.service) or bool(known.codes & self.codes)

    def means(self, known: Known) -> bool:
        """Whether it is a failure of a machine's software, whoever says it, or what a service answers."""
        return known.reads(self.text) if known in MACHINES else self.is_place(known)


def diagnose_waiting(state: str) -> Diagnosis:
    """Return why a job has no machines for too long: queued is for quota, pending is for machines.

    https://docs.cloud.google.com/vertex-ai/docs/training/understanding-training-service#queue_a_new_job
    """
    kind = "quota queue" if state == "QUEUED" else "stockout"
    known = next(known for known in PLACES if known.kind == kind)
    return _of_table(known, f"its state was {state} for longer than resources.max_pending_s")


def _of_fault(document: ErrorDocument) -> Diagnosis:
    """Return the cause of a stage's exception: a machine's software, a service's answer, or the code."""
    for known in MACHINES:
        if known.reads(document.message):
            return _of_table(known, document.message)
    code = CODE_OF_EXCEPTION.get(document.kind)
    for known in SERVICES:
        if code in known.codes:
            return _of_table(known, document.message)
    return _of_document(document, "fault", f"a stage ended with {document.kind}")


def _of_document(document: ErrorDocument, kind: str, cause: str) -> Diagnosis:
    advice = next(
        (line.strip().removeprefix("to do: ") for line in document.message.splitlines() if "to do:" in line),
        "submit again: finished stages are reused" if document.exit_code == EXIT_TRY_AGAIN else "see the message",
    )
    return Diagnosis(kind, cause, advice, document.exit_code, document.message)


def _of_table(known: Known, text: str) -> Diagnosis:
    cause = known.cause
    if known.kind == "quota" and (metrics := find_quota_metrics(text)):
        cause = f"{cause}: {', '.join(metrics)}"
    advice = known.advice
    if known is _REFUSED and (permission := find_permission(text)):
        cause = f"{cause}: {permission}"
        advice = "grant a role that has it: deploy/terraform/project lists the roles of a line"
    return Diagnosis(known.kind, cause, advice, known.exit_code, text)
