"""`shardline init`: a first configuration for Google Cloud, a file of pipelines/initial with the user's names.

Each works in a project without a GPU quota: one machine without a GPU, and a small network.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from string import Template

from contracts.config.load import load_config
from contracts.config.run import TASKS
from contracts.errors import ConfigError
from pipelines.rules.cloud_names import check_name
from pipelines.rules.names import MAX_NAME

_FILES = Path(__file__).parent / "initial"


@dataclass(frozen=True)
class Names:
    """What a user gives."""

    project: str
    bucket: str
    source: str
    """Path, or URI in a bucket; the line is named after it."""
    region: str = "us-central1"
    task: str = TASKS[0]


def write_initial(names: Names, path: Path | None) -> Path:
    """Write a configuration, and return where.

    Args:
        names: What it is made of.
        path: The file; None: NAME.yaml in the current folder.

    Raises:
        ConfigError: A name is one that Google would refuse, there is no such task, or the file is there.
    """
    for kind in ("project", "bucket", "region"):
        for problem in check_name(kind, f"--{kind}", getattr(names, kind)):
            raise ConfigError(problem.given, allowed=problem.allowed, todo=problem.todo)
    if names.task not in TASKS:
        todo = "choose one of them; a task of your own is set in the file (docs/tasks.md)"
        raise ConfigError(f"--task {names.task}", allowed=", ".join(TASKS), todo=todo)
    # raw/My Photos.csv -> my-photos
    stem = re.sub(r"[^a-z0-9]+", "-", names.source.rstrip("/").rpartition("/")[2].partition(".")[0].lower())
    name = (stem.strip("-") if re.match(r"-?[a-z]", stem) else f"line-{stem.strip('-')}")[:MAX_NAME].strip("-")
    # In JSON's quotes: YAML would read some names as something else.
    given = {**asdict(names), "name": name, "source": json.dumps(names.source)}
    target = path or Path(f"{name}.yaml")
    try:
        with target.open("x", encoding="utf-8") as file:
            file.write(Template((_FILES / f"{names.task}.yaml").read_text(encoding="utf-8")).substitute(given))
    except FileExistsError:
        todo = "give --output another name, or edit the file"
        raise ConfigError(f"{target} is there", allowed="a file that is not there", todo=todo) from None
    except OSError as error:
        allowed = "a file in a folder of yours"
        raise ConfigError(
            f"{target} cannot be written: {error.strerror}", allowed=allowed, todo="give --output"
        ) from None
    load_config(target)
    return target
