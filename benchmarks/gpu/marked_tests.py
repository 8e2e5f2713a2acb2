"""The tests that are marked gpu, run by pytest in the files that have some, and what came of each."""

from __future__ import annotations

import re
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

from benchmarks.gpu.setting import REPOSITORY, Details, Setting, module_command
from benchmarks.gpu.stages import Failed, NotRun

MARK = "@pytest.mark.gpu"
TESTS = REPOSITORY / "tests"
# Longest time of one test: pytest ends it, and the others go on.
TEST_LIMIT_S = 100


def marked_files() -> list[Path]:
    """Return the test files that have a test for a GPU."""
    return sorted(path for path in TESTS.rglob("test_*.py") if MARK in path.read_text(encoding="utf-8"))


def marked_names() -> list[str]:
    """Return the names of the tests, file::test, without importing them."""
    return [
        f"{path.relative_to(REPOSITORY)}::{name}"
        for path in marked_files()
        for name in re.findall(MARK + r"\n(?:@.*\n)*def (\w+)", path.read_text(encoding="utf-8"))
    ]


def run_marked_tests(setting: Setting) -> Details:
    """All tests that are marked gpu; those of a file that needs a module that is not installed are not run.

    Raises:
        Failed: One failed.
        NotRun: None could be run.
    """
    outcomes: dict[str, str] = {}
    for place, files in _by_conftest().items():
        report = setting.path / f"junit-{place.name}.xml"
        options = ["-m", "gpu", f"--junitxml={report}", f"--timeout={TEST_LIMIT_S}", "--continue-on-collection-errors"]
        done = subprocess.run(
            module_command("pytest", "-q", *options, *map(str, files)),
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            check=False,
        )
        said = (done.stderr + done.stdout)[-4000:]
        if not report.exists():
            # A conftest.py that cannot be imported ends pytest before its report.
            outcomes |= dict.fromkeys((str(path.relative_to(REPOSITORY)) for path in files), _reason(said))
            continue
        outcomes |= dict(_read_report(report))
    failed = {name: outcome for name, outcome in outcomes.items() if outcome.startswith("failed")}
    if failed:
        raise Failed(f"{len(failed)} of {len(outcomes)} failed: {', '.join(failed)}", tests=outcomes)
    if "passed" not in outcomes.values():
        raise NotRun("; ".join(f"{name}: {outcome}" for name, outcome in outcomes.items()) or "no test is marked gpu")
    return {"tests": outcomes}


def _by_conftest() -> dict[Path, list[Path]]:
    """Return the files by the nearest folder with a conftest.py, which all of them need."""
    found: dict[Path, list[Path]] = defaultdict(list)
    for path in marked_files():
        found[next(parent for parent in path.parents if (parent / "conftest.py").exists())].append(path)
    return found


def _read_report(report: Path) -> Iterator[tuple[str, str]]:
    for case in ElementTree.parse(report).iter("testcase"):
        name = "::".join(filter(None, (case.get("classname"), case.get("name"))))
        outcome = "passed"
        for child in case:
            if child.tag == "skipped":
                outcome = f"not run: {child.get('message', '')}"
            elif child.tag in ("failure", "error"):
                outcome = _reason(f"{child.get('message', '')}\n{child.text or ''}")
        yield name, outcome


def _reason(said: str) -> str:
    missing = re.search(r"No module named '([\w.]+)'", said)
    return f"not run: {missing[1]} is not installed" if missing else f"failed: {said.strip()[:1500]}"
