"""First configuration for Google Cloud (`shardline init`): a template of pipelines/initial with the user's names.

It works in a project without a GPU quota: one machine without a GPU, and a small network.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from string import Template

from contracts.config.run import TASKS
from contracts.errors import ConfigError
from pipelines.rules.cloud_names import check_name
from pipelines.rules.names import MAX_NAME

_TEMPLATES = Path(__file__).parent / "initial"


@dataclass(frozen=True)
class Names:
    """Names that the template is filled in with."""

    project: str
    bucket: str
    source: str
    """Path, or URI in a bucket; the line is named after it."""
    region: str = "us-central1"
    task: str = TASKS[0]


def write_initial(names: Names, path: Path | None) -> Path:
    """Write a configuration, and return its path.

    Args:
        names: The user's names.
        path: The file; None: NAME.yaml in the current folder.

    Raises:
        ConfigError: Google would refuse a name, there is no such task, or the file exists or cannot be written.
    """
    for kind in ("project", "bucket", "region"):
        for problem in check_name(kind, f"--{kind}", getattr(names, kind)):
            raise ConfigError(problem.given, allowed=problem.allowed, todo=problem.todo)
    if names.task not in TASKS:
        todo = "choose one of them; a task of your own is set in the file (docs/tasks.md)"
        raise ConfigError(f"--task {names.task}", allowed=", ".join(TASKS), todo=todo)
    name = _name_of_line(names.source)
    template = Template((_TEMPLATES / f"{names.task}.yaml").read_text(encoding="utf-8"))
    # The source in JSON's quotes: YAML would read some paths as something else.
    text = template.substitute({**asdict(names), "name": name, "source": json.dumps(names.source)})
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
