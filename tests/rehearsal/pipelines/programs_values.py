# ruff: noqa: UP006, UP035, UP045 - kfp knows the names of typing only.
"""Small pipelines of values and artifacts. (kfp reads annotations: no `from __future__ import annotations` here.)"""

from typing import List, Optional

from kfp import dsl

from tests.rehearsal.execution.graphs import IMAGE, SAY, WRITE, fail, make_text, read_text, say, write

KFP = {"base_image": "python:3.11", "install_kfp_package": False}


@dsl.container_component
def say_if(heard: dsl.OutputPath(str), text: Optional[str] = None, number: int = 7):
    given = dsl.IfPresentPlaceholder(input_name="text", then=["--text", text], else_=["--no-text"])
    both = dsl.ConcatPlaceholder(["n=", number])
    return dsl.ContainerSpec(image=IMAGE, command=["python3", "-c", SAY], args=[heard, given, both])


@dsl.container_component
def write_as(kind: dsl.OutputPath(int), content: str):
    return dsl.ContainerSpec(image=IMAGE, command=["python3", "-c", WRITE], args=[kind, content])


@dsl.container_component
def say_environment(heard: dsl.OutputPath(str)):
    code = SAY.replace("sys.argv[2:]", "[os.environ['ONE'], os.environ['TWO']]")
    return dsl.ContainerSpec(image=IMAGE, command=["python3", "-c", code], args=[heard])


@dsl.component(**KFP)
def all_types(
    text: str, number: int, real: float, flag: bool, items: list, struct: dict, none: Optional[str] = None
) -> dict:
    assert isinstance(number, int) and isinstance(real, float | int) and isinstance(flag, bool) and none is None
    return {"text": text, "number": number, "flag": flag, "items": items, "struct": struct}


@dsl.component(**KFP)
def join_texts(parts: List[dsl.Artifact]) -> str:
    return ",".join(open(part.path).read() for part in parts)


@dsl.component(**KFP)
def maybe_artifact(made: Optional[dsl.Input[dsl.Artifact]] = None) -> str:
    return "none" if made is None else open(made.path).read()


@dsl.component(**KFP)
def custom_path(made: dsl.Output[dsl.Dataset]):
    import tempfile

    folder = tempfile.mkdtemp()
    made.set_path(f"{folder}/content")
    with open(made.path, "w") as stream:
        stream.write("from elsewhere")


@dsl.component(**KFP)
def custom_folder(made: dsl.Output[dsl.Dataset]):
    import tempfile
    from pathlib import Path

    folder = Path(tempfile.mkdtemp())
    (folder / "part").mkdir()
    (folder / "part" / "0").write_text("in a folder")
    made.set_path(str(folder))


@dsl.component(**KFP)
def read_part(made: dsl.Input[dsl.Dataset]) -> str:
    from pathlib import Path

    return Path(made.path, "part", "0").read_text()


@dsl.component(**KFP)
def custom_uri(uri: str, made: dsl.Output[dsl.Dataset]):
    made.uri = uri
    made.metadata["rows"] = 3
    from pathlib import Path

    Path(made.path).parent.mkdir(parents=True, exist_ok=True)
    Path(made.path).write_text("at a place of its own")


@dsl.component(base_image="python:3.11", packages_to_install=["packaging", "pydantic>=2"])
def installs(text: str) -> str:
    import pydantic

    return text + pydantic.__name__


@dsl.component(base_image="python:3.11", packages_to_install=["pydantic"], use_venv=True)
def installs_apart(text: str) -> str:
    return text + "a venv"


@dsl.component(base_image="python:3.11", packages_to_install=["no-such-package==1.0"])
def installs_what_is_absent() -> str:
    return "never"


@dsl.pipeline(name="defaults")
def defaults(text: Optional[str] = None, number: int = 3):
    say_if(text=text, number=number)
    say_if()


@dsl.pipeline(name="inner-optional")
def inner_optional(text: Optional[str] = None, word: str = "default"):
    say_if(text=text)
    say(text=word)


@dsl.pipeline(name="nested-optional")
def nested_optional(text: Optional[str] = None):
    inner_optional(text=text)
    inner_optional(text="given", word="given too")


@dsl.pipeline(name="types")
def types(text: str, number: int, real: float, flag: bool, items: list, struct: dict):
    made = all_types(text=text, number=number, real=real, flag=flag, items=items, struct=struct)
    say(struct=made.output)


@dsl.pipeline(name="returns")
def returns(text: str) -> dsl.Artifact:
    write(value=text)
    return make_text(text=text).outputs["made"]


@dsl.pipeline(name="outer")
def outer():
    inside = returns(text="from inside")
    read_text(made=inside.output)


@dsl.pipeline(name="wrong-output")
def wrong_output(content: str):
    say(number=write_as(content=content).outputs["kind"])


@dsl.pipeline(name="environment")
def environment():
    say_environment().set_env_variable("ONE", "1 and 'one'").set_env_variable("TWO", "{{$.pipeline_job_name}}")


@dsl.pipeline(name="collected-artifacts")
def collected_artifacts():
    with dsl.ParallelFor(["a", "b", "c"]) as item:
        made = make_text(text=item)
    join_texts(parts=dsl.Collected(made.outputs["made"]))


@dsl.pipeline(name="one-of-artifacts")
def one_of_artifacts(value: str):
    asked = write(value=value)
    with dsl.If(asked.outputs["out"] == "a"):
        first = make_text(text="from a")
    with dsl.Else():
        second = make_text(text="from another")
    read_text(made=dsl.OneOf(first.outputs["made"], second.outputs["made"]))


@dsl.pipeline(name="optional-artifact")
def optional_artifact():
    maybe_artifact()
    maybe_artifact(made=make_text(text="given").outputs["made"])


@dsl.pipeline(name="paths")
def paths(uri: str):
    read_text(made=custom_path().outputs["made"])
    read_text(made=custom_uri(uri=uri).outputs["made"])
    read_part(made=custom_folder().outputs["made"])


@dsl.pipeline(name="installed")
def installed():
    installs(text="with ")
    installs_apart(text="without ")


@dsl.pipeline(name="absent")
def absent():
    installs_what_is_absent()


@dsl.pipeline(name="from-oci")
def from_oci(uri: str):
    read_text(made=dsl.importer(artifact_uri=uri, artifact_class=dsl.Model).output)


@dsl.pipeline(name="constant-oci")
def constant_oci():
    read_text(made=dsl.importer(artifact_uri="oci://registry/model", artifact_class=dsl.Model).output)


@dsl.container_component
def of_an_image_alone():
    return dsl.ContainerSpec(image=IMAGE)


@dsl.pipeline(name="entrypoint")
def entrypoint():
    of_an_image_alone()


@dsl.pipeline(name="uncached")
def uncached():
    say(text="x").set_caching_options(False)
    fail(code=1)
