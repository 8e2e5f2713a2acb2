"""The model registry of Vertex AI: whether there is a model of this name."""

from __future__ import annotations

import argparse
from typing import Any

from pipeline_tasks.outputs import write_parameter

TIMEOUT_S = 60.0
# How long a request is repeated, with growing pauses, when the service does not answer.
RETRY_DEADLINE_S = 180.0


def run(options: argparse.Namespace) -> None:
    """Give out the model's resource name, and whether there is one: yes or no."""
    found = find_model(options.project, options.region, options.name)
    write_parameter(options.write_resource, found or "")
    address = f"https://{options.region}-aiplatform.googleapis.com/v1/"
    write_parameter(options.write_uri, address + (found or ""))
    write_parameter(options.write_exists, "no" if found is None else "yes")


def find_model(project: str, region: str, name: str) -> str | None:
    """Return the resource name of the newest model with this display name; None: there is none.

    Raises:
        google.api_core.exceptions.GoogleAPICallError: The service says no.
    """
    from google.cloud import aiplatform_v1

    request = aiplatform_v1.ListModelsRequest(
        parent=f"projects/{project}/locations/{region}", filter=f'display_name="{name}"'
    )
    # Each page is a request of its own, with this time-out and these retries.
    found = list(_client(region).list_models(request, **_options()))
    return str(max(found, key=lambda model: model.create_time).name) if found else None


def _client(region: str) -> Any:
    from google.cloud import aiplatform_v1

    return aiplatform_v1.ModelServiceClient(client_options={"api_endpoint": f"{region}-aiplatform.googleapis.com"})


def _options() -> dict[str, Any]:
    """Return timeout and retry of a request that may be repeated."""
    from google.api_core import exceptions as api
    from google.api_core.retry import Retry, if_exception_type

    kinds = (api.ServiceUnavailable, api.GatewayTimeout, api.InternalServerError, api.BadGateway)
    retry = Retry(predicate=if_exception_type(*kinds), initial=1.0, maximum=20.0, timeout=RETRY_DEADLINE_S)
    return {"timeout": TIMEOUT_S, "retry": retry}
