"""Sections `run` and `vertex`: where a line lives and where it runs."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from contracts.config.base import Section


class RunSection(Section):
    """Where a line lives and what its randomness starts from."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$")] = "line"
    """Name of the line: lower-case letters, digits, '-' and '_'."""
    root: str = "runs"
    """Folder or URI that holds lines; this line's files are below root/name."""
    seed: Annotated[int, Field(strict=True, ge=0, lt=2**63)] = 0
    """Start of all randomness: shards, order of samples, initial weights, augmentation."""


class DataflowSection(Section):
    """What a Dataflow job of the shard stage runs on."""

    worker_image: str = ""
    """Container image of the workers: Beam and this project installed."""
    machine_type: str = "n1-standard-4"
    """Compute Engine machine type of the workers."""
    max_workers: Annotated[int, Field(strict=True, ge=1, le=4000)] = 32
    """Most worker machines that the job may grow to."""
    disk_gb: Annotated[int, Field(strict=True, ge=30, le=65536)] = 50
    """Disk of a worker, in GB: it holds the shards being written."""
    flexrs: bool = False
    """Flexible resource scheduling: cheaper machines, and a start that may wait for up to six hours."""
    temp_location: str = ""
    """gs:// folder for temporary files; unset: BUCKET/dataflow/temp beside the output."""
    staging_location: str = ""
    """gs:// folder for the staged graph; unset: `temp_location`."""


class VertexSection(Section):
    """Where in Google Cloud the line runs. Nothing here changes a result."""

    project: str = ""
    """Project id."""
    region: str = ""
    """Region of all jobs: that of the bucket."""
    network: str = ""
    """VPC network of the workers; unset: `default`."""
    subnetwork: str = ""
    """Subnetwork of the workers: regions/REGION/subnetworks/NAME."""
    public_ips: bool = True
    """Whether workers get addresses outside of the network."""
    service_account: str = ""
    """E-mail address of the account that workers act as; unset: the project's default."""
    kms_key: str = ""
    """Customer-managed encryption key: projects/P/locations/L/keyRings/R/cryptoKeys/K."""
    labels: dict[str, str] = {}
    """Labels of all jobs, for the bill."""
    dataflow: DataflowSection = DataflowSection()
