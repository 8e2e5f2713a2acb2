"""The whole local cloud: bucket server, Vertex, guard, and what executes."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any, Self

from google.cloud import aiplatform_v1
from google.oauth2.credentials import Credentials
from google.protobuf import json_format

from rehearsal.clock import Clock
from rehearsal.doors.server import VertexServer
from rehearsal.gcs import BucketServer
from rehearsal.jobs.custom_jobs import CustomJobRuns
from rehearsal.jobs.dataflow import DataflowJobs
from rehearsal.jobs.market import Market
from rehearsal.machines.machine import Scale
from rehearsal.pipelines.pipeline_runs import PipelineRuns
from rehearsal.resources.store import Store
from tests.rehearsal.execution.world import LIMIT_S, NUMBERS, PARENT, Logs


class Cloud:
    """A context manager around all of it."""

    def __init__(
        self,
        folder: Path,
        bucket: BucketServer,
        *,
        market: Market | None = None,
    ) -> None:
        self.folder, self.bucket, self.store, self.logs = folder, bucket, Store(), Logs()
        clock = Clock()
        self.custom_jobs = CustomJobRuns(
            self.store,
            folder=folder / "jobs",
            logs=self.logs,
            clock=clock,
            market=market,
            scale=Scale(time_scale=0.1),
        )
        self.dataflow = DataflowJobs(self.store, folder=folder / "dataflow", logs=self.logs, clock=clock)
        self.pipelines = PipelineRuns(
            self.store,
            folder=folder / "pipelines",
            logs=self.logs,
            clock=clock,
            project_numbers=NUMBERS,
            cancel_resource=self.cancel_resource,
        )
        self.server = VertexServer(
            self.store,
            pipelines=self.pipelines,
            custom_jobs=self.custom_jobs,
            clock=clock,
            projects=NUMBERS,
            folder=folder / "server",
            buckets=bucket,
            dataflow=self.dataflow,
        )

    def __enter__(self) -> Self:
        self.server.start()
        self.environment = {**self.bucket.environment, **self.server.environment}
        for part in (self.pipelines, self.custom_jobs, self.dataflow):
            part.environment = self.environment
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.pipelines.close()
        self.custom_jobs.close()
        self.dataflow.close()
        self.server.stop()

    def cancel_resource(self, name: str) -> None:
        """End a custom job or a Dataflow job."""
        (self.custom_jobs if "/customJobs/" in name else self.dataflow).cancel(name)

    def client(self, kind: Any) -> Any:
        """A client of a service over REST."""
        options = {"api_endpoint": self.server.endpoint}
        return kind(transport="rest", credentials=Credentials(self.server.access.token), client_options=options)

    def submit(self, pipeline: Any, run: str = "run-1", **parameters: Any) -> str:
        """Compile a pipeline and create a job of it through the client; return its name."""
        job = aiplatform_v1.PipelineJob(
            display_name=run,
            pipeline_spec=json_format.MessageToDict(pipeline.pipeline_spec),
            runtime_config={
                "gcs_output_directory": f"gs://line/{self.folder.name}",
                "parameter_values": parameters,
            },
        )
        client = self.client(aiplatform_v1.PipelineServiceClient)
        created = client.create_pipeline_job(parent=PARENT, pipeline_job=job, pipeline_job_id=run)
        return str(created.name)

    def wait(self, name: str) -> Any:
        """Wait for a pipeline job's end, and return it."""
        job = self.pipelines.wait(name, LIMIT_S)
        assert job.end_time, (self.folder / "pipelines" / name.rpartition("/")[2] / "orchestrator.log").read_text()
        return job
