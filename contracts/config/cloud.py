"""Sections `cloud`, `dataflow` and `vertex`: Google Cloud, the jobs of the shard stage, and Vertex AI."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field

from contracts.config.base import Section

_PINNED = re.compile(
    r"[a-z0-9.-]+\.[a-z]+(:\d+)?/[a-z0-9]+([._/-][a-z0-9_]+)*(:[\w.-]+)?@sha256:[0-9a-f]{64}", re.ASCII
)


def _check_pinned(reference: str) -> str:
    if reference and not _PINNED.fullmatch(reference):
        raise ValueError(f"HOST/PATH@sha256: and 64 hex digits, not {reference}: a tag may move under a running job")
    return reference


PinnedImage = Annotated[str, AfterValidator(_check_pinned)]
"""Reference that names one container image for ever; empty: none."""


class ImagesSection(Section):
    """Container images."""

    repository: str = ""
    """Where built images are pushed: REGION-docker.pkg.dev/PROJECT/REPOSITORY."""
    build_account: str = ""
    """E-mail address of the account that Cloud Build builds as; unset: the project's default account."""
    cpu: PinnedImage = ""
    """Image of list-source, shard, record and Dataflow's workers: HOST/PATH@sha256:HEX; unset: the one built last."""
    gpu: PinnedImage = ""
    """Image of profile, train, export and register: HOST/PATH@sha256:HEX; unset: the one built last."""
    serving: str = ""
    """Triton image in your Artifact Registry that serves the model; needed where `register.upload` is true: the one
    that the export names lies in NVIDIA's registry, where Vertex AI cannot pull it."""


class CloudSection(Section):
    """Where in Google Cloud the line runs, and as whom. Nothing here changes a result."""

    project: str = ""
    """Project id."""
    region: str = ""
    """Region of all jobs: that of the bucket."""
    billing_project: str = ""
    """Project that pays for reading the bucket of `sharding.source` where it has requester pays; unset: none is named,
    and such a bucket refuses."""
    service_account: str = ""
    """E-mail address of the account that jobs and workers act as; unset: the project's default."""
    kms_key: str = ""
    """Customer-managed encryption key: projects/P/locations/L/keyRings/R/cryptoKeys/K."""
    labels: dict[str, str] = {}
    """Labels of all jobs, for the bill."""
    images: ImagesSection = ImagesSection()


class DataflowSection(Section):
    """What a Dataflow job of the shard stage runs on. Nothing here changes a result."""

    machine_type: str = "n1-standard-4"
    """Compute Engine machine type of the workers."""
    max_workers: Annotated[int, Field(strict=True, ge=1, le=4000)] = 32
    """Most worker machines that the job may grow to."""
    network: str = ""
    """VPC network of the workers, or its subnetwork: regions/REGION/subnetworks/NAME; unset: `default`."""
    public_ips: bool = True
    """Whether workers get addresses outside of the network."""


class VertexSection(Section):
    """How the line runs on Vertex AI. Nothing here changes a result."""

    peered_network: str = ""
    """Network that CustomJobs are peered with: projects/NUMBER/global/networks/NAME; not beside `psc_attachment`."""
    psc_attachment: str = ""
    """Network attachment of CustomJobs (Private Service Connect): projects/P/regions/R/networkAttachments/N."""
    tensorboard: str = ""
    """TensorBoard that training writes to: projects/P/locations/R/tensorboards/ID; it needs `cloud.service_account`."""
    experiment: str = ""
    """Experiment that each run is a row of, scheduled ones too, once it has ended; unset: none."""
    mail: Annotated[list[str], Field(max_length=3)] = []
    """Up to three addresses that are told when a run ends."""
