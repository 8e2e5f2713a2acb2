"""Cloud Resource Manager as far as clients ask it who a project is.

The SDK asks it before a submission: it compares the number of its project with that of the bucket (`projectNumber` of
the bucket's resource). The two agree where the server's `projects` give the bucket server's number
(rehearsal.gcs.resources.PROJECT_NUMBER, or a bucket's own `projectNumber`).
"""

from __future__ import annotations

from google.cloud.resourcemanager_v3 import types

from rehearsal.doors.errors import ServiceError
from rehearsal.resources.cloud_state import Caller, CloudState


def get(cloud: CloudState, request: types.GetProjectRequest, caller: Caller) -> types.Project:
    """Return a project, asked for by its id or number."""
    wanted = request.name.removeprefix("projects/")
    for project_id, number in cloud.projects.items():
        if wanted in (project_id, number):
            return types.Project(
                name=f"projects/{number}",
                project_id=project_id,
                display_name=project_id,
                state=types.Project.State.ACTIVE,
            )
    raise ServiceError(
        "PERMISSION_DENIED",
        f"The caller does not have permission resourcemanager.projects.get on {request.name} (or it may not exist)",
    )


METHODS = {"GetProject": get}
