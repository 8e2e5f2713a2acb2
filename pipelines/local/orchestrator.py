"""The process that runs the graph with kfp.local: `python -m pipelines.local.orchestrator RUN_FOLDER`.

`shardline run` starts it with its output sent to a file: kfp prints the input of every task, and that is not for the
user. It holds no logic of the line, and nothing imports it.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

from components.launch import ORCHESTRATOR_PID_VARIABLE
from contracts.errors import ConfigError
from contracts.process import end_with_parent, refuse_import
from contracts.result import RUN_START_NAME

KFP_FOLDER = "kfp"


def main(run_folder: Path) -> None:
    """Run the graph with the arguments in run-start.json of `run_folder`; kfp's own files go below it too."""
    end_with_parent()
    os.environ[ORCHESTRATOR_PID_VARIABLE] = str(os.getpid())
    _name_interpreter_python3()
    arguments = json.loads((run_folder / RUN_START_NAME).read_text())["arguments"]

    refuse_import("docker")
    from kfp import local

    from pipelines.graph.wiring import training

    local.init(
        runner=local.SubprocessRunner(use_venv=False),
        pipeline_root=str(run_folder / KFP_FOLDER),
        workspace_root=str(run_folder / KFP_FOLDER / "workspace"),
        raise_on_error=True,
    )
    training(**arguments)


def _name_interpreter_python3() -> None:
    """Let `python3` in a shell be this interpreter, and be the name that kfp.local knows it by.

    kfp.local replaces the text python3 by sys.executable in every argument of a task: in the command, where a blank in
    the interpreter's path would break it, and in the values of parameters, where a folder of the user may be called
    that. With equal names the replacement changes nothing.
    """
    folder = os.path.dirname(sys.executable)  # noqa: PTH120 - links in the path are what makes an environment
    found = shutil.which("python3", path=folder)
    if found is None or not Path(found).samefile(sys.executable):
        raise ConfigError(
            f"{folder} holds no python3 that is {sys.executable}",
            allowed="the interpreter of a virtual environment",
            todo="install shardline in one: python3 -m venv .venv",
        )
    os.environ["PATH"] = os.pathsep.join([folder, os.environ.get("PATH", os.defpath)])
    sys.executable = "python3"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
