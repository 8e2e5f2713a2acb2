"""First configuration for Google Cloud (`shardline init`): a template of pipelines/initial with the user's names.

It works in a project without a GPU quota: one machine without a GPU, and a small network.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from string import Template

from contracts.config.run import TASKS
from contracts.errors import ConfigError
from pipelines.rules import MAX_NAME, check_name

_TEMPLATES = Path(__file__).parent / "initial"


def write_initial(path: Path | None, source: str, task: str, **names: str) -> Path:
    """Write a configuration, and return its path.

    Args:
        path: The file; None: NAME.yaml in the current folder.
        source: Path, or URI in a bucket; the line is named after it.
        task: One of contracts.config.run.TASKS.
        names: Names of project, bucket and region.

    Raises:
        ConfigError: Google would refuse a name, there is no such task, or the file exists or cannot be written.
    """
    for kind, value in names.items():
        for problem in check_name(kind, f"--{kind}", value):
            raise problem.error()
    if task not in TASKS:
        todo = "choose one of them; a task of your own is set in the file (docs/tasks.md)"
        raise ConfigError(f"--task {task}", allowed=", ".join(TASKS), todo=todo)
    name = _name_of_line(source)
    template = Template((_TEMPLATES / f"{task}.yaml").read_text(encoding="utf-8"))
    # The source in JSON's quotes: YAML would read some paths as something else.
    text = template.substitute(names, name=name, source=json.dumps(source))
    target = path or Path(f"{name}.yaml")
    try:
        with target.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise ConfigError(
            f"{target} cannot be written: {error.strerror}",
            allowed="a file that does not exist, in a folder that you may write",
            todo="choose another path, or edit the file that is there",
        ) from None
    return target


def _name_of_line(source: str) -> str:
    """Return a run.name made from a path: raw/My Photos.csv gives my-photos."""
    stem = source.rstrip("/").rpartition("/")[2].partition(".")[0].lower()
    name = re.sub(r"[^a-z0-9]+", "-", stem).strip("-")
    return (name if re.match("[a-z]", name) else f"line-{name}")[:MAX_NAME].strip("-")
