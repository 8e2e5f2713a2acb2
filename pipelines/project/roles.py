"""IAM roles that a line needs: whose, on what, and why. docs/vertex.md shows these tables.

Sources: https://cloud.google.com/vertex-ai/docs/general/access-control,
https://cloud.google.com/dataflow/docs/concepts/access-control, https://cloud.google.com/storage/docs/access-control/iam-roles,
https://cloud.google.com/build/docs/securing-builds/configure-user-specified-service-accounts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Scope = Literal["project", "bucket", "repository", "runner", "build account"]


@dataclass(frozen=True)
class Role:
    """One role of one kind of principal."""

    name: str
    """As in roles/storage.objectUser."""
    scope: Scope
    """What it is granted on: never more than it is needed for."""
    reason: str


# The account that the pipeline's tasks, custom jobs and Dataflow's workers act as (cloud.service_account).
RUNNER = (
    Role("roles/aiplatform.user", "project", "starting CustomJobs, registering the model, metadata, TensorBoard"),
    Role("roles/dataflow.admin", "project", "starting the Dataflow job; Google's smallest role that may"),
    Role("roles/dataflow.worker", "project", "Dataflow's workers act as it too"),
    Role("roles/logging.logWriter", "project", "what containers print"),
    Role("roles/storage.objectUser", "bucket", "reading the source, writing shards, checkpoints and engines"),
    Role("roles/storage.legacyBucketReader", "bucket", "Dataflow looks at the bucket itself"),
    Role("roles/artifactregistry.reader", "repository", "Dataflow's workers pull the image as it"),
    Role("roles/iam.serviceAccountUser", "runner", "the pipeline's tasks start jobs that act as it"),
)
# The account that Cloud Build builds images as (project.build_account).
BUILD = (
    Role("roles/logging.logWriter", "project", "the build's log: an account of one's own has no bucket for it"),
    Role("roles/storage.objectViewer", "bucket", "reading the source of the images"),
    Role("roles/artifactregistry.writer", "repository", "pushing the images"),
)
# Who submits (project.users).
USER = (
    Role("roles/aiplatform.user", "project", "`submit`, `schedule`, `status`, `cancel`"),
    Role("roles/iam.serviceAccountUser", "runner", "jobs that act as it"),
    Role("roles/iam.serviceAccountUser", "build account", "builds that act as it"),
    Role("roles/storage.objectUser", "bucket", "publishing the stages' sections"),
    Role("roles/storage.legacyBucketReader", "bucket", "the bucket's region (`submit`, `plan --online`)"),
    Role("roles/logging.viewer", "project", "`logs`"),
    Role("roles/dataflow.developer", "project", "`status` and `cancel` of a Dataflow job"),
    Role("roles/artifactregistry.writer", "repository", "`images build`, `vertex.registry`"),
    Role("roles/cloudbuild.builds.editor", "project", "`images build` with Cloud Build"),
    Role("roles/cloudquotas.viewer", "project", "quotas (`submit`, `plan --online`)"),
    Role("roles/serviceusage.serviceUsageConsumer", "project", "credentials that name the project for their quota"),
)
