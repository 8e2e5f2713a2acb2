"""Print the requirements of this project with some of its extras: `python requirements.py EXTRA...`.

Images install them before the sources are copied, so that an edit of the sources keeps that layer. It runs in the
folder of pyproject.toml, with nothing installed.
"""

import sys
import tomllib
from pathlib import Path


def list_requirements(project: dict, extras: list[str]) -> list[str]:
    """Return the requirements of the project's table with its extras, and with the extras that they name."""
    found, waiting = list(project["dependencies"]), list(extras)
    while waiting:
        for requirement in project["optional-dependencies"][waiting.pop()]:
            if requirement.startswith("shardline["):
                waiting += requirement.partition("[")[2].rstrip("]").split(",")
            else:
                found.append(requirement)
    return found


if __name__ == "__main__":
    settings = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))
    sys.stdout.write("\n".join(list_requirements(settings["project"], sys.argv[1:])) + "\n")
