"""Final states of custom jobs, pipeline jobs and Dataflow jobs.

https://cloud.google.com/vertex-ai/docs/reference/rest/v1/JobState, .../PipelineState, and
https://cloud.google.com/dataflow/docs/reference/rest/v1b3/projects.jobs#Job.JobState
"""

from __future__ import annotations

from typing import Any

# As the names of the states end; those of Dataflow are DONE, FAILED, CANCELLED, DRAINED, UPDATED and STOPPED.
_FINAL = ("_SUCCEEDED", "_FAILED", "_CANCELLED", "_EXPIRED", "_DONE", "_DRAINED", "_UPDATED", "_STOPPED")


def has_ended(message: Any) -> bool:
    """Return whether the state of a job is final; Dataflow's messages have it in current_state."""
    state = message.current_state if hasattr(message, "current_state") else message.state
    return bool(state.name.endswith(_FINAL))
