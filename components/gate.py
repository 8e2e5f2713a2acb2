"""The components of the gate before the upload."""

from kfp import dsl

from components.container import container


@dsl.container_component
def gate(
    line: str,
    run_id: str,
    export: str,
    config: str,
    serving_image: str,
    verdict: dsl.OutputPath(str),  # type: ignore[valid-type]
    artifact_uri: dsl.OutputPath(str),  # type: ignore[valid-type]
    image: dsl.OutputPath(str),  # type: ignore[valid-type]
) -> dsl.ContainerSpec:
    """Decide whether an export is uploaded.

    Args:
        line: URI of the line's folder.
        run_id: Id of the run.
        export: URI of the export.
        config: URI of the export stage's sections and the hash of their content.
        serving_image: Image that serves it; empty: the one that the export names.
        verdict: upload or refuse.
        artifact_uri: The Triton repository.
        image: The image that serves it.
    """
    return container(
        ["pipeline_tasks.task", "gate"],
        {
            "--line": line,
            "--run-id": run_id,
            "--export": export,
            "--config": config,
            "--serving-image": serving_image,
            "--write-verdict": verdict,
            "--write-artifact-uri": artifact_uri,
            "--write-image": image,
        },
    )


@dsl.container_component
def refused(verdict: str) -> dsl.ContainerSpec:
    """End the branch in which nothing is uploaded; fail when the verdict is none of the two.

    Args:
        verdict: What the gate gave out.
    """
    return container(["pipeline_tasks.task", "refused"], {"--verdict": verdict})
