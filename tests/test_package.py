"""The wheel: its files, its refusal where its names are taken, and a run of the digits outside of the checkout."""

import json
import os
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
import yaml

from contracts import PACKAGES
from examples.digits import write_digits
from pipelines import images
from pipelines.images import CONTEXT, IMAGE_FILES, list_sources

ROOT = Path(__file__).parents[1]
# Python files of the checkout, or shared libraries and data below it, that a process of the installed package opens.
NO_CHECKOUT = """
import os, sys

def watch(event, arguments):
    if event == "open" and isinstance(arguments[0], str) and arguments[0].startswith({root!r}):
        if not arguments[0].startswith({allowed!r}):
            log = os.open({log!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            os.write(log, (arguments[0] + "\\n").encode())
            os.close(log)

sys.addaudithook(watch)
"""


def tracked(*places: str) -> set[str]:
    """Return the files below some places of the checkout that git knows, or would take."""
    command = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard", "--", *places]
    names = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.splitlines()
    return {name for name in names if (ROOT / name).exists()}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout, as `make dist` builds it."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=120)
    (built,) = folder.glob("*.whl")
    return built


def install(folder: Path, wheel: Path) -> Path:
    """Return a fresh environment with the wheel, which finds what else it needs in the environment of the tests.

    A line of a .pth file that names a folder reads none of the .pth files there: no editable installation is followed.
    """
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    others = [entry for entry in sys.path if Path(entry).name in ("site-packages", "dist-packages")]
    (site / "others.pth").write_text("\n".join(others) + "\n")
    python = folder / "bin" / "python"
    pip = [str(python), "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--ignore-installed", str(wheel)]
    subprocess.run(pip, check=True, cwd=folder, env=clean(), timeout=240)
    return folder


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment with the wheel."""
    return install(tmp_path_factory.mktemp("environment"), wheel)


def clean(**variables: str) -> dict[str, str]:
    """Return the environment variables of a user's shell."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST"))}
    return {**kept, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", **variables}


def test_the_wheel_holds_the_packages_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as opened:
        found = opened.namelist()
    assert len(found) == len(set(found))
    held = {name for name in found if ".dist-info/" not in name}
    shipped = {f"{IMAGE_FILES}/{name}" for name in tracked(*(name for name in CONTEXT if name not in images.PACKAGES))}
    assert held == tracked(*PACKAGES) | shipped
    assert {f"{package}/py.typed" for package in PACKAGES} < held
    (metadata,) = {name.partition("/")[0] for name in set(found) - held}
    named = {name.removeprefix(f"{metadata}/") for name in set(found) - held}
    licences = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["license-files"]
    assert named == {"METADATA", "WHEEL", "RECORD", "entry_points.txt", *(f"licenses/{name}" for name in licences)}


def test_an_installed_package_builds_the_images_of_the_checkout(installed: Path, tmp_path: Path) -> None:
    code = "from pipelines.images import hash_sources; print(hash_sources())"
    command = [str(installed / "bin" / "python"), "-c", code]
    done = subprocess.run(command, cwd=tmp_path, env=clean(), capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, f"{images.hash_sources()}\n"), done.stderr


def test_the_sources_of_an_image_install(tmp_path: Path) -> None:
    """As the gpu image does it: README.md and LICENSE are empty files, and there is no deploy/docker/."""
    packages = [name for name in images.PACKAGES if name != "sharding"]
    for name, path in list_sources().items():
        if name.partition("/")[0] in (*packages, "pyproject.toml"):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_bytes(path.read_bytes())
    for name in ("README.md", "LICENSE"):
        (tmp_path / name).touch()
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel"]
    subprocess.run(build, cwd=tmp_path, check=True, capture_output=True, timeout=120)
    (built,) = (tmp_path / "dist").glob("*.whl")
    with zipfile.ZipFile(built) as opened:
        held = {name.partition("/")[0] for name in opened.namelist() if ".dist-info/" not in name}
    assert held == {*packages, "pipelines"}


def test_the_current_folder_is_not_searched(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "records.py").write_text("raise SystemExit('imported')")
    (tmp_path / "inspection").mkdir()
    (tmp_path / "line.yaml").write_text("{}")
    done = subprocess.run(
        [str(installed / "bin" / "shardline"), "config", "show", "line.yaml"],
        cwd=tmp_path,
        env=clean(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_wheel_runs_the_digits_outside_of_the_checkout(installed: Path, tmp_path: Path) -> None:
    (site,) = installed.glob("lib/python*/site-packages")
    opened = tmp_path / "opened"
    hook = NO_CHECKOUT.format(root=f"{ROOT}{os.sep}", allowed=str(ROOT / ".venv") + os.sep, log=str(opened))
    (site / "no_checkout.py").write_text(hook)
    (site / "no_checkout.pth").write_text("import no_checkout\n")
    # A user's own modules of our names, in the folder that he works in.
    (tmp_path / "records.py").write_text("raise SystemExit('the current folder is searched')")
    (tmp_path / "inspection.py").write_text("raise SystemExit('the current folder is searched')")
    write_digits(tmp_path / "raw" / "digits")
    values = yaml.safe_load((ROOT / "configs" / "digits.yaml").read_text())
    values["train"]["epochs"] = 2
    (tmp_path / "digits.yaml").write_text(yaml.safe_dump(values))
    shardline = str(installed / "bin" / "shardline")
    command = [shardline, "run", "digits.yaml", "profile=off", "export.precision=fp32", "export.runtime=tensorrt_rtx"]
    done = subprocess.run(command, cwd=tmp_path, env=clean(), capture_output=True, text=True, timeout=540, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads((tmp_path / "runs" / "digits" / "run.json").read_text())
    assert [stage["state"] for stage in record["stages"]] == 4 * ["done"], record["stages"]
    assert not opened.exists(), opened.read_text()
    # The check can fail.
    subprocess.run([str(installed / "bin" / "python"), "-c", f"open({str(ROOT / 'README.md')!r})"], check=True)
    assert opened.read_text() == f"{ROOT / 'README.md'}\n"
