"""The routes that docs/architecture.md names are short, and of files that are there; the package stays flat."""

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
MAX_FILE_LINES = 400
# Of these stages the layout comes later.
ELSEWHERE = (
    "trainer/export/",
    "trainer/profiling/",
    # What an export ships: predict.py is one file that runs alone.
    "trainer/tasks/images/predict.py",
    "trainer/tasks/text_classification/predict.py",
)


@pytest.mark.parametrize(("route", "most"), [("The learning rate", 6), ("A sample", 9)])
def test_a_route_is_short_and_of_files_that_are_there(route: str, most: int) -> None:
    text = (REPOSITORY / "docs" / "architecture.md").read_text()
    found = re.search(rf"- \*\*{route}\*\*, from .*?:(.*?)\.(?:\n|  | Aug)", text, re.DOTALL)
    assert found is not None
    files = re.findall(r"`([a-z_/]+\.py)`", found[1])
    assert 4 <= len(files) <= most
    assert [name for name in files if not (REPOSITORY / name).exists()] == []


def test_the_package_is_flat_and_its_files_are_short() -> None:
    here = [path.name for path in (REPOSITORY / "trainer").glob("*.py")]
    assert len(here) <= 10, here
    long = {}
    for path in (REPOSITORY / "trainer").rglob("*.py"):
        name = path.relative_to(REPOSITORY).as_posix()
        lines = len(path.read_text().splitlines())
        if lines > MAX_FILE_LINES and not name.startswith(ELSEWHERE):
            long[name] = lines
    assert long == {}
