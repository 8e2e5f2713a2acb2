import copy
import json
from pathlib import Path
from typing import Any

import pytest

from pipelines.plan.plan import outline
from pipelines.rules.submission import Asked, find_asked_problems, find_template_problems
from tests.pipelines.compiled import compile_config
from tests.pipelines.test_plan import config


@pytest.fixture(scope="module")
def spec() -> dict[str, Any]:
    return compile_config(config("resources.nodes=1")).spec


def problems_of(spec: dict[str, Any], folder: Path, *overrides: str) -> list[str]:
    path = folder / "line.json"
    path.write_text(json.dumps(spec))
    resolved = config(*overrides)
    read, problems = find_template_problems(resolved, outline(resolved), str(path))
    assert read is not None
    return [problem.given for problem in problems]


def test_a_template_may_differ_in_parameters_alone(spec: dict[str, Any], tmp_path: Path) -> None:
    assert (
        problems_of(spec, tmp_path, "resources.nodes=1", "train.learning_rate=0.5", "resources.strategy=STANDARD") == []
    )


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("resources.nodes=3", "replica_count"),
        ("resources.machine.boot_disk_gb=200", "boot_disk_size_gb: 100 there, 200 by the configuration"),
        ("cloud.labels={team: vision}", "labels"),
        ("cloud.service_account=a@my-project.iam.gserviceaccount.com", "service_account"),
        ("resources.env={NCCL_DEBUG: INFO}", "NCCL_DEBUG"),
        ("vertex.model.name=other", "display_name"),
        ("vertex.mail=[a@b.com]", "more"),
    ],
)
def test_all_that_a_template_fixes_is_compared(spec: dict[str, Any], tmp_path: Path, override: str, said: str) -> None:
    (problem,) = problems_of(spec, tmp_path, "resources.nodes=1", override)
    assert "is of another configuration" in problem and said in problem


def test_a_template_of_another_version_lacks_a_parameter(spec: dict[str, Any], tmp_path: Path) -> None:
    older = copy.deepcopy(spec)
    del older["root"]["inputDefinitions"]["parameters"]["strategy"]
    (problem,) = problems_of(older, tmp_path, "resources.nodes=1")
    assert "inputDefinitions.parameters.strategy" in problem
    (gone,) = find_template_problems(config(), outline(config()), str(tmp_path / "gone"))[1]
    assert "is not there" in gone.given


def test_what_is_said_beside_the_configuration() -> None:
    given = Asked(run_id="Run 1", template="x", tags=("a",), scheduled=True)
    told = [problem.given for problem in find_asked_problems(config(), given)]
    assert told == [
        "--run-id Run 1",
        "--tag a without a repository",
        "--tag beside --template",
        "schedule.cron is not set",
    ]
    assert not list(find_asked_problems(config(), Asked(run_id="run-1")))
