"""Compiled specifications: one form of them, and what of them is refused by name."""

# No `from __future__ import annotations` here: kfp reads the types of parameters from the functions.

from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format
from kfp import dsl

from contracts.config.load import load_config
from pipelines.pipeline import make_pipeline
from rehearsal.pipelines.spec import find_unsupported, normalise
from tests.pipelines.images import REGISTERED
from tests.rehearsal import graphs

CONFIG = Path(__file__).parents[3] / "configs" / "digits-vertex.yaml"


def test_names_of_both_kinds_are_one_form() -> None:
    """A client may send either form of protobuf's JSON; numbers of a Struct are doubles."""
    message = graphs.failing.pipeline_spec
    camel = normalise(json_format.MessageToDict(message))
    snake = json_format.MessageToDict(message, preserving_proto_field_name=True)
    assert "deployment_spec" in snake and normalise(snake) == camel
    default = camel["components"]["comp-say"]["inputDefinitions"]["parameters"]["number"]["defaultValue"]
    assert default == 0 and isinstance(default, int)
    assert normalise({**camel, "unheardOf": 1}) == camel


def test_a_line_is_played() -> None:
    config = load_config(CONFIG, [*REGISTERED, "vertex.mail=[a@example.com]"])
    spec = json_format.MessageToDict(make_pipeline(config).pipeline_spec)
    assert "register" in spec["components"]["comp-exit-handler-1"]["dag"]["tasks"]
    assert find_unsupported(spec) == []


@dsl.component(base_image="python:3.11", install_kfp_package=False)  # type: ignore[untyped-decorator]
def python_component() -> None:
    pass


@dsl.container_component  # type: ignore[untyped-decorator]
def put_together(text: str) -> dsl.ContainerSpec:
    return dsl.ContainerSpec(image="i", command=["echo"], args=[dsl.ConcatPlaceholder(["a", text])])


@dsl.container_component  # type: ignore[untyped-decorator]
def told(made: dsl.Input[dsl.Artifact]) -> dsl.ContainerSpec:
    return dsl.ContainerSpec(image="i", command=["echo"], args=[made.path])


@dsl.container_component  # type: ignore[untyped-decorator]
def counted(rows: dsl.OutputPath(int)) -> dsl.ContainerSpec:  # type: ignore[valid-type]
    return dsl.ContainerSpec(image="i", command=["echo"], args=[rows])


@dsl.pipeline(name="inner")  # type: ignore[untyped-decorator]
def inner() -> None:
    graphs.say()


def condition() -> None:
    with dsl.If(graphs.write(value="a").outputs["out"] == "a"):
        graphs.say()


def loop() -> None:
    with dsl.ParallelFor(["a", "b"]) as item:
        graphs.say(text=item)


def handed_in() -> None:
    made = graphs.make_text(text="x").outputs["made"]
    with dsl.ExitHandler(graphs.final()):
        graphs.read_text(made=made)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (condition, "root.dag.tasks.condition-1.triggerPolicy.condition"),
        (loop, "root.dag.tasks.for-loop-2.parameterIterator"),
        (inner, "component root: task inner: a group of tasks (a condition, a loop, a pipeline in a pipeline)"),
        (lambda: graphs.say().set_retry(1), "root.dag.tasks.say.retryPolicy"),
        (
            handed_in,
            "components.comp-exit-handler-1.dag.tasks.read-text.inputs.artifacts.made.componentInputArtifact",
        ),
        (
            lambda: dsl.importer(artifact_uri="gs://b/x", artifact_class=dsl.Artifact),
            "deploymentSpec.executors.exec-importer.importer",
        ),
        (
            python_component,
            "executor exec-python-component: a Python component (@dsl.component): use a container component",
        ),
        (
            lambda: put_together(text="b"),
            "executor exec-put-together: a composed argument (dsl.ConcatPlaceholder, dsl.IfPresentPlaceholder)",
        ),
        (
            lambda: told(made=graphs.make_text(text="x").outputs["made"]),
            "executor exec-told: the placeholder {{$.inputs.artifacts['made'].path}}",
        ),
        (counted, "component comp-counted: parameter rows: an output that is not text"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_refused_is_named(body: Any, expected: str) -> None:
    def program() -> None:
        body()

    spec = json_format.MessageToDict(dsl.pipeline(program, name="program").pipeline_spec)
    assert expected in find_unsupported(spec)
