"""A simulated Google Cloud on this machine: buckets, Vertex AI, Dataflow, a spot market and a clock.

    with LocalCloud(folder, projects={"acme": "123456789012"}, buckets=["acme-line"]) as cloud:
        subprocess.run([...], env={**os.environ, **cloud.environment})

Unmodified clients use it, through environment variables only. All its files are below `folder`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from rehearsal.clock import Clock
from rehearsal.gcs import BucketService, Rule
from rehearsal.jobs.custom_jobs import CustomJobRuns
from rehearsal.jobs.dataflow import DataflowJobs
from rehearsal.jobs.market import Market
from rehearsal.jobs.threads import Place
from rehearsal.machines.machine import Scale
from rehearsal.pipelines.runs import PipelineRuns
from rehearsal.servers.access import Access
from rehearsal.servers.vertex import VertexServer
from rehearsal.vertex.logs import LogBook
from rehearsal.vertex.state import CloudState
from rehearsal.vertex.store import Store

BUCKETS_FOLDER = "buckets"


class LocalCloud:
    """A running local cloud: a context manager.

    Args:
        folder: For all its files; plain files in folder/buckets/BUCKET become that bucket's objects.
        projects: Project id -> number; the first is the clients' default.
        buckets: Buckets to create.
        market: Preemptions, and regions without machines.
        scale: How machines are scaled down to this one.
        clock: Its clock.
        rules: Fault rules of the bucket server.
    """

    def __init__(
        self,
        folder: Path,
        *,
        projects: Mapping[str, str],
        buckets: Iterable[str] = (),
        market: Market | None = None,
        scale: Scale | None = None,
        clock: Clock | None = None,
        rules: Iterable[Rule] = (),
    ) -> None:
        self.folder = folder
        self.clock, self.market, self.scale = clock or Clock(), market or Market(), scale or Scale()
        self.store, self.logs = Store(), LogBook()
        folder.mkdir(parents=True, exist_ok=True)
        access = Access(folder / "vertex", project=next(iter(projects)))
        self.buckets = BucketService(
            folder / BUCKETS_FOLDER,
            buckets=buckets,
            access_log=folder / "bucket-requests.jsonl",
            rules=rules,
        )

        def place(name: str) -> Place:
            return Place(self.store, self.logs, self.clock, folder / name, lambda: access.token)

        self.custom_jobs = CustomJobRuns(place("machines"), market=self.market, scale=self.scale)
        self.dataflow = DataflowJobs(place("dataflow"))
        self.pipelines = PipelineRuns(
            place("pipelines"), project_numbers=projects, cancel_resource=self._cancel_resource
        )
        state = CloudState(
            self.store,
            self.pipelines,
            self.custom_jobs,
            self.clock,
            projects,
            self.buckets,
            self.dataflow,
            self.logs,
        )
        self.vertex = VertexServer(state, folder / "vertex", access)
        self._stack = contextlib.ExitStack()

    @property
    def environment(self) -> dict[str, str]:
        """Variables that make Google's clients in child processes use this cloud, and nothing else."""
        return self.vertex.environment

    def stop_disturbances(self) -> None:
        """End stockouts and faults of buckets."""
        self.market.end_stockouts()
        self.buckets.faults.set()

    def _cancel_resource(self, name: str) -> None:
        (self.custom_jobs if "/customJobs/" in name else self.dataflow).cancel(name)

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            stack.callback(self.buckets.close)
            stack.enter_context(self.vertex)
            for executor in (self.custom_jobs, self.dataflow, self.pipelines):
                executor.place.environment = self.vertex.machine_environment
                executor.place.on_refused = self.vertex.note_refused
                stack.callback(executor.close)
            # Called first: schedules must not start runs while the executors end.
            stack.callback(self.vertex.stop_schedules)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
        faults = [fault for jobs in (self.pipelines, self.custom_jobs, self.dataflow) for fault in jobs.failures]
        if faults:
            raise RuntimeError(f"the local cloud had {len(faults)} faults in its executors, the first:\n{faults[0]}")
