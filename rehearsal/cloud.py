"""A Google Cloud on this machine, for this line: buckets, Vertex AI, Dataflow, a spot market and a clock, put together.

    with LocalCloud(folder, projects={"acme": "123456789012"}, buckets=["acme-line"]) as cloud:
        subprocess.run([...], env={**os.environ, **cloud.environment})

Clients come to it unmodified, by variables alone. Everything that is written lies below `folder`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from rehearsal.clock import Clock
from rehearsal.doors.access import Access
from rehearsal.doors.server import VertexServer
from rehearsal.gcs import BucketService, Rule
from rehearsal.jobs.custom_jobs import CustomJobRuns
from rehearsal.jobs.dataflow import DataflowJobs
from rehearsal.jobs.market import Market
from rehearsal.machines.machine import Scale
from rehearsal.machines.network import Network
from rehearsal.pipelines.pipeline_runs import PipelineRuns
from rehearsal.resources.store import Store
from rehearsal.vertex.logs import LogBook

BUCKETS_FOLDER = "buckets"


class LocalCloud:
    """A running local cloud: a context manager.

    Args:
        folder: For everything that it writes; plain files in folder/buckets/BUCKET become that bucket's objects.
        projects: Project id -> number; the first is clients' default.
        buckets: Buckets to make.
        location: Where those are, and those that plain files make.
        market: Decides about machines.
        scale: How machines are played that this one cannot hold.
        clock: Of the rehearsed cloud.
        rules: Faults and costs of the bucket server.
    """

    def __init__(
        self,
        folder: Path,
        *,
        projects: Mapping[str, str],
        buckets: Iterable[str] = (),
        location: str = "US",
        market: Market | None = None,
        scale: Scale | None = None,
        clock: Clock | None = None,
        rules: Iterable[Rule] = (),
    ) -> None:
        self.folder = folder
        self.clock = clock or Clock()
        self.market = market or Market()
        self.scale = scale or Scale()
        self.store = Store()
        self.logs = LogBook()
        folder.mkdir(parents=True, exist_ok=True)
        access = Access(folder / "vertex", project=next(iter(projects)))
        self.buckets = BucketService(
            folder / BUCKETS_FOLDER,
            buckets=buckets,
            access_log=folder / "bucket-requests.jsonl",
            rules=rules,
            location=location,
        )
        self.custom_jobs = CustomJobRuns(
            self.store,
            folder=folder / "machines",
            logs=self.logs,
            clock=self.clock,
            market=self.market,
            scale=self.scale,
            token=lambda: access.token,
        )
        self.dataflow = DataflowJobs(
            self.store,
            folder=folder / "dataflow",
            logs=self.logs,
            clock=self.clock,
            token=lambda: access.token,
        )
        self.pipelines = PipelineRuns(
            self.store,
            folder=folder / "pipelines",
            logs=self.logs,
            clock=self.clock,
            project_numbers=projects,
            token=lambda: access.token,
            cancel_resource=self.cancel_resource,
        )
        self.vertex = VertexServer(
            self.store,
            pipelines=self.pipelines,
            custom_jobs=self.custom_jobs,
            clock=self.clock,
            projects=projects,
            folder=folder / "vertex",
            access=access,
            buckets=self.buckets,
            dataflow=self.dataflow,
            logs=self.logs,
        )
        self._stack = contextlib.ExitStack()

    @property
    def environment(self) -> dict[str, str]:
        """Variables that lead unmodified clients in child processes here, and nowhere else."""
        return self.vertex.environment

    def calm(self) -> None:
        """Let nothing go wrong any more: no stockouts or faults of buckets."""
        self.market.calm()
        self.buckets.faults.set()

    @property
    def machine_environment(self) -> dict[str, str]:
        """Variables of machines' containers."""
        return self.vertex.machine_environment

    def cancel_resource(self, name: str) -> None:
        """End a custom job or a Dataflow job by its name."""
        if "/customJobs/" in name:
            self.custom_jobs.cancel(name)
        else:
            self.dataflow.cancel(name)

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            stack.callback(self.buckets.close)
            stack.enter_context(self.vertex)
            network = stack.enter_context(Network(refuse=self.vertex.note_refused))
            self.custom_jobs.network = self.dataflow.network = network
            self.custom_jobs.environment = self.dataflow.environment = self.machine_environment
            self.pipelines.environment = self.environment
            self.pipelines.container_environment = self.machine_environment
            for part in (self.custom_jobs, self.dataflow, self.pipelines):
                stack.callback(part.close)
            # Called first: nothing fires while what would execute it ends.
            stack.callback(self.vertex.stop_schedules)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
        faults = [fault for part in (self.pipelines, self.custom_jobs, self.dataflow) for fault in part.failures]
        if faults:
            raise RuntimeError(f"the local cloud had {len(faults)} faults where it executes, the first:\n{faults[0]}")
