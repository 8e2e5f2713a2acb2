import copy
from collections.abc import Iterator
from typing import Any

import pytest

from contracts.config import RunConfig
from contracts.resolve import apply_override, parse_config
from tests.pipelines.project.cloud import EmptyCloud, open_cloud

RUNNER = "shardline-runner@acme-vision.iam.gserviceaccount.com"
BUILD = "shardline-build@acme-vision.iam.gserviceaccount.com"
DOCUMENT: dict[str, Any] = {
    "run": {"name": "digits", "root": "gs://acme-vision-line/lines"},
    "cloud": {"project": "acme-vision", "region": "us-central1", "service_account": RUNNER},
}
# Everything that can be declared.
WHOLE = (
    "dataflow.network=line",
    "dataflow.public_ips=false",
    "vertex.registry=https://us-central1-kfp.pkg.dev/acme-vision/pipelines",
    f"project.build_account={BUILD}",
    'project.users=["user:ada@acme.com"]',
    "project.monthly_budget=100",
    "project.tensorboard=true",
)


def configure(*overrides: str) -> RunConfig:
    values = copy.deepcopy(DOCUMENT)
    for override in overrides:
        apply_override(values, override)
    return parse_config(values, where="test")


@pytest.fixture
def config() -> RunConfig:
    return configure()


@pytest.fixture
def whole() -> RunConfig:
    return configure(*WHOLE)


@pytest.fixture(scope="module")
def module_cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmptyCloud]:
    with open_cloud(tmp_path_factory.mktemp("cloud")) as cloud:
        yield cloud


@pytest.fixture
def cloud(module_cloud: EmptyCloud) -> EmptyCloud:
    module_cloud.empty()
    return module_cloud
