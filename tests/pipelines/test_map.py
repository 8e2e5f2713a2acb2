"""The map of the package names every module, and no other."""

import re
from pathlib import Path

import pipelines


def test_the_package_says_where_everything_is() -> None:
    folder = Path(str(pipelines.__file__)).parent
    modules = {path.stem for path in folder.rglob("*.py") if path.parent.name != "commands"} - {"__init__"}
    words = set(re.findall(r"[a-z_]+", str(pipelines.__doc__).partition("\n\n")[2]))
    assert modules <= words, sorted(modules - words)
    # A module that is gone is not named any more.
    named = {word for word in words if "_" in word}
    assert named <= modules, sorted(named - modules)
