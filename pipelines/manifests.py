"""`shardline manifests`: Kubernetes manifests of one stage, for Google Kubernetes Engine.

    job         an Indexed Job of batch/v1, with a headless Service for several machines
    trainjob    a TrainingRuntime and a TrainJob of Kubeflow Trainer v2 (profile and train)

A preempted pod, and one that exits with 75, is restarted alone; exit codes 2 and 70 fail the job. podFailurePolicy
requires restartPolicy Never. Not verified on a real cluster.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import yaml

from components.launch import OPTIONAL_INPUTS, STAGE_INPUTS, STAGE_MODULES
from contracts import storage
from contracts.config import RunConfig
from contracts.config.load import stage_config
from contracts.errors import EXIT_CHECK_FAILED, EXIT_FAULT, EXIT_TRY_AGAIN, EXIT_USER_ERROR, ConfigError
from contracts.machines import Machine, find_machine, serving_section
from contracts.own_code import code_hash, named_code
from pipelines.rules import check_name

Kind = Literal["trainjob", "job"]
Document = dict[str, Any]

CONTAINER = "node"
"""Trainer v2 sets PET_* only in the container of this name; the failure policy refers to it too."""
MAX_NAME = 63 - len("-node-0-999-abcde")
"""Longest name of a job: a pod's is NAME-node-0-INDEX-SUFFIX, and has 63 characters at most. JobSet's webhook refuses a
longer one for ever, and a TrainJob shows no condition then."""
GRACE_S = 15
"""GKE gives pods of a spot machine 15 of the 30 s of its notice."""
RETRIES = 6  # of failures that are neither preemptions nor final
SHARD_CPUS = 4
DISTRIBUTED = ("profile", "train")
# Number of additional networks for traffic between GPUs of several machines. Not verified.
_FABRIC_NETWORKS = {"a3-highgpu-8g": 4, "a3-megagpu-8g": 8, "a3-ultragpu-8g": 8, "a4-highgpu-8g": 8}
_SPOT, _FLEX_START = "cloud.google.com/gke-spot", "cloud.google.com/gke-flex-start"


@dataclass(frozen=True)
class StageJob:
    """One stage as a job of Kubernetes.

    Args:
        config: The resolved configuration, with both images (pipelines/images.py).
        stage: shard, profile, train or export.
        inputs: URIs of its inputs, by option of the stage's command.
        queue: Kueue's LocalQueue; empty: none.
        networks: Names of GKE's Network objects for traffic between GPUs.

    Raises:
        ConfigError: A name, an input or the networks are invalid.
    """

    config: RunConfig
    stage: str
    inputs: dict[str, str]
    queue: str = ""
    networks: Sequence[str] = ()
    machine: Machine | None = field(init=False)
    """None: a stage without a GPU takes any machine."""

    def __post_init__(self) -> None:
        section = serving_section(self.config) if self.stage == "export" else self.config.resources.machine
        object.__setattr__(self, "machine", find_machine(section) if section.type and self.stage != "shard" else None)
        self._check_names()
        self._check_inputs()
        self._check_networks()

    def documents(self, kind: Kind) -> list[Document]:
        """Return the documents in the order in which they are applied.

        Raises:
            ConfigError: The kind has no such stage.
        """
        account = [self._service_account()] if self._account_name else []
        if kind == "job":
            return [*account, *([self._service()] if self.nodes > 1 else []), self._indexed_job()]
        if self.stage not in DISTRIBUTED:
            raise ConfigError(
                f"--kind trainjob with --stage {self.stage}",
                allowed=f"trainjob for the distributed stages {' and '.join(DISTRIBUTED)}; job for every stage",
                todo="omit --kind, or use --kind job",
            )
        return [*account, self._training_runtime(), self._train_job()]

    @property
    def name(self) -> str:
        """Name of the job and of what belongs to it."""
        return f"{self.config.run.name}-{self.stage}"

    @property
    def nodes(self) -> int:
        """Number of machines."""
        return self.config.resources.num_nodes if self.stage in DISTRIBUTED else 1

    def _check_names(self) -> None:
        config = self.config
        if not re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", self.name) or len(self.name) > MAX_NAME:
            raise ConfigError(
                f"the job's name {self.name}, from run.name, has {len(self.name)} characters",
                allowed=f"up to {MAX_NAME} lower-case letters, digits and '-', since its pods' names are longer",
                todo="shorten run.name, or correct it",
            )
        for problem in check_name("folder", "run.root", config.run.root):
            raise problem.error()
        if self.stage == "shard":
            for problem in check_name("folder", "sharding.source", config.sharding.source):
                raise problem.error()
        if named_code(config) and config.code.path and not code_hash(config.code):
            raise ConfigError(
                f"code.path = {config.code.path}: pods cannot read folders of this machine",
                allowed="modules in the images, or the archive in the bucket that `shardline submit` uploads",
                todo="copy the modules into the images and omit code.path, or set it to that archive",
            )

    def _check_inputs(self) -> None:
        allowed_names = STAGE_INPUTS[self.stage]
        for name in allowed_names:
            if not self.inputs.get(name) and name not in OPTIONAL_INPUTS:
                raise ConfigError(
                    f"--stage {self.stage} without --{name}",
                    allowed=f"--{name} URI",
                    todo="give the URI that its stage printed last: `kubectl logs job/...`",
                )
        for name, uri in self.inputs.items():
            if name not in allowed_names:
                allowed = ", ".join(f"--{option}" for option in allowed_names) or "no input"
                raise ConfigError(f"--{name} with --stage {self.stage}", allowed=allowed, todo="leave it out")
            for problem in check_name("folder", f"--{name}", uri):
                raise problem.error()

    def _check_networks(self) -> None:
        needed = _FABRIC_NETWORKS.get(self.machine.type, 0) if self.machine is not None and self.nodes > 1 else 0
        if len(self.networks) == needed:
            return
        label = self.machine.type if self.machine is not None else "a machine without GPUs"
        message = f"{len(self.networks)} --networks for {self.nodes} x {label}"
        if not needed:
            allowed = "none: one machine, or machines without networks of their own for GPUs"
            raise ConfigError(message, allowed=allowed, todo="leave --networks out")
        raise ConfigError(
            message,
            allowed=f"{needed} names of GKE's Network objects, with commas between",
            todo="make the networks of the cluster first (GKE: GPU networking), or take one machine",
        )

    def _service_account(self) -> Document:
        account = self.config.cloud.service_account
        annotations = {"iam.gke.io/gcp-service-account": account}
        return _document("v1", "ServiceAccount", self._account_name, annotations=annotations)

    @property
    def _account_name(self) -> str:
        return self.config.cloud.service_account.partition("@")[0]

    def _service(self) -> Document:
        selector = {"batch.kubernetes.io/job-name": self.name}
        spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": selector}
        return {**_document("v1", "Service", self.name), "spec": spec}

    def _indexed_job(self) -> Document:
        variables = {"MASTER_ADDR": f"{self.name}-0.{self.name}"} if self.nodes > 1 else {}
        job = _document("batch/v1", "Job", self.name, labels=self._labels, annotations=self._annotations)
        pod = self.pod(self._container(variables))
        if self.nodes > 1:
            pod["subdomain"] = self.name
        return {**job, "spec": {**self._job_rules, "template": {"metadata": self._pod_metadata, "spec": pod}}}

    def _training_runtime(self) -> Document:
        labels = {"trainer.kubeflow.org/framework": "torch"}
        step = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
        job = {
            "backoffLimit": RETRIES,
            **{name: self._job_rules[name] for name in ("activeDeadlineSeconds", "podFailurePolicy")},
            # Trainer merges the TrainJob's container, with its variables, into this one.
            "template": {"metadata": self._pod_metadata, "spec": self.pod(self._container({}, runs=False))},
        }
        rule = {"name": "wontHelp", "action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}
        job_set = {
            "failurePolicy": {"maxRestarts": 0, "rules": [rule]},
            "replicatedJobs": [{"name": "node", "template": {"metadata": {"labels": step}, "spec": job}}],
        }
        runtime = _document("trainer.kubeflow.org/v1alpha1", "TrainingRuntime", self.name, labels=labels)
        policy = {"numNodes": self.nodes, "torch": {}}
        return {**runtime, "spec": {"mlPolicy": policy, "template": {"spec": job_set}}}

    def _train_job(self) -> Document:
        job = _document(
            "trainer.kubeflow.org/v1alpha1", "TrainJob", self.name, labels=self._labels, annotations=self._annotations
        )
        container, ranks = self._container({}), self.config.resources.ranks
        if ranks == "auto":
            ranks = self.machine.gpus if self.machine is not None and self.machine.gpus else 2
        trainer = {
            "numNodes": self.nodes,
            "numProcPerNode": ranks,
            "image": container["image"],
            "command": container["command"],
            "args": container["args"],
            "env": container["env"],
            "resourcesPerNode": container["resources"],
        }
        runtime = {"apiGroup": "trainer.kubeflow.org", "kind": "TrainingRuntime", "name": self.name}
        return {**job, "spec": {"runtimeRef": runtime, "trainer": trainer}}

    @property
    def _annotations(self) -> dict[str, str]:
        # Kueue's provisioning request of flex-start: all machines at once.
        if not self.queue or self.config.resources.strategy != "FLEX_START":
            return {}
        return {"provreq.kueue.x-k8s.io/maxRunDurationSeconds": f"{self.config.resources.timeout_hours * 3600:.0f}"}

    @property
    def _labels(self) -> dict[str, str]:
        return {"kueue.x-k8s.io/queue-name": self.queue} if self.queue else {}

    @property
    def _job_rules(self) -> Document:
        def on_exit_codes(action: str, codes: list[int]) -> Document:
            return {"action": action, "onExitCodes": {"containerName": CONTAINER, "operator": "In", "values": codes}}

        taken_away = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
        final = [EXIT_USER_ERROR, EXIT_FAULT]
        # Of the export, 1 is a failed gate: retries do not help. Of other stages it is a crash of Python.
        final = [EXIT_CHECK_FAILED, *final] if self.stage == "export" else final
        rules = [taken_away, on_exit_codes("Ignore", [EXIT_TRY_AGAIN]), on_exit_codes("FailJob", final)]
        return {
            "completionMode": "Indexed",
            "completions": self.nodes,
            "parallelism": self.nodes,
            "backoffLimit": RETRIES,
            # Limits ignored failures, which backoffLimit does not count.
            "activeDeadlineSeconds": int(self.config.resources.timeout_hours * 3600),
            "podReplacementPolicy": "Failed",
            "podFailurePolicy": {"rules": rules},
        }

    @property
    def _pod_metadata(self) -> Document:
        names = ["default", *self.networks]
        interfaces = [{"interfaceName": f"eth{number}", "network": name} for number, name in enumerate(names)]
        annotations = {
            "networking.gke.io/default-interface": "eth0",
            "networking.gke.io/interfaces": json.dumps(interfaces),
        }
        return {"annotations": annotations} if self.networks else {}

    def pod(self, container: Document | None = None) -> Document:
        """Return the specification of a pod."""
        strategy, machine = self.config.resources.strategy, self.machine
        selector, tolerations = {}, []
        if self._annotations:
            tolerations.append({"key": "cloud.google.com/gke-queued", "operator": "Exists", "effect": "NoSchedule"})
        if machine is not None:
            selector["node.kubernetes.io/instance-type"] = machine.type
            label = {"SPOT": _SPOT, "FLEX_START": _FLEX_START}.get(strategy)
            if label:
                selector[label] = "true"
                tolerations.append({"key": label, "operator": "Equal", "value": "true", "effect": "NoSchedule"})
            if machine.gpus:
                # GKE's names are those of Vertex AI in lower case: nvidia-l4.
                selector["cloud.google.com/gke-accelerator"] = machine.accelerator_type.lower().replace("_", "-")
                tolerations.append({"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"})
        pod: Document = {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": GRACE_S,
            "nodeSelector": selector,
            "tolerations": tolerations,
            "containers": [container or self._container({})],
            "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
        }
        if self._account_name:
            pod["serviceAccountName"] = self._account_name
        return pod

    def _container(self, variables: dict[str, str], *, runs: bool = True) -> Document:
        """Return the container.

        Args:
            variables: Additional environment variables.
            runs: Whether to include command and variables: the runtime of a TrainJob must not have them.
        """
        images = self.config.cloud.images
        container: Document = {
            "name": CONTAINER,
            "image": images.cpu if self.stage == "shard" else images.gpu,
            "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],  # loader processes' memory
        }
        if not runs:
            return container
        # Pods of an Indexed Job cannot read their number from the environment.
        config = self.config.with_keys(resources={"nodes": self.nodes})
        uid = {"fieldRef": {"fieldPath": "metadata.labels['batch.kubernetes.io/controller-uid']"}}
        env = {**(config.resources.env if self.stage in DISTRIBUTED else {}), **variables, "PYTHONSAFEPATH": "1"}
        if self.machine is not None and self.machine.gpus:
            resource = {"limits": {"nvidia.com/gpu": self.machine.gpus}}
        else:
            resource = {"requests": {"cpu": max(1, self.machine.vcpus - 1) if self.machine is not None else SHARD_CPUS}}
        root = storage.join(config.run.root, config.run.name, self.stage)
        options = [f"--root={root}", f"--config-json={json.dumps(stage_config(config, self.stage), sort_keys=True)}"]
        return {
            **container,
            "command": ["python", "-m", STAGE_MODULES[self.stage]],
            "args": options + [f"--{name}={uri}" for name, uri in self.inputs.items()],
            "env": [
                *({"name": name, "value": value} for name, value in sorted(env.items())),
                # The trainer counts starts without progress per job.
                {"name": "SHARDLINE_JOB_ID", "valueFrom": uid},
            ],
            "resources": resource,
        }


def _document(api_version: str, kind: str, name: str, **metadata: dict[str, str]) -> Document:
    fields = {key: value for key, value in metadata.items() if value}
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": name, **fields}}


def render(documents: Sequence[Document], job: StageJob) -> str:
    """Return the text of documents for kubectl."""
    warning = (
        "# Not verified: the networks of GPUs. Without its plugin and daemon NCCL falls back to TCP: measure first.\n"
    )
    return (warning if job.networks else "") + yaml.safe_dump_all(documents, sort_keys=False, width=120).rstrip()
