"""Takes the pictures that docs/ shows: `python -m tests.screenshot RUN RAW [NAME...]`.

RUN is the folder of a finished run of the demo (`runs/digits`), which most pictures are of, RAW that of its images
(`raw/digits`). Runs that diverged, failed or were preempted are made of the same images, the last one on the rehearsed
cloud: some minutes. A picture is one screen of its page, and has 300 kB at most.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from inspection.page import render_report, render_stage
from inspection.profile_page import make_profile_page
from inspection.run.find import find_place
from inspection.run.read import read_run
from tests.browser import opened, started_chromium

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
WIDTH = 1180
MOST_BYTES = 300_000


@dataclass(frozen=True)
class Shot:
    """A picture: of which page, from where on, and how high."""

    page: str
    height: int
    section: str = ""


SHOTS = {
    "report": Shot("finished", 1400),
    "report-curves": Shot("preempted", 1300, "curves"),
    "report-diverged": Shot("diverged", 800),
    "profile": Shot("profile", 1400),
    "vertex-train": Shot("train", 1700),
    "vertex-export": Shot("export", 1300),
}


def make_runs(raw: Path, folder: Path) -> dict[str, Path]:
    """Make the runs that did not go through at once; return their lines by what became of them."""
    configs, command = ROOT / "configs", [sys.executable, "-m", "pipelines.cli"]
    short = ['profile.method="off"', "train.epochs=4"]
    ways = {
        "diverged": ["train.learning_rate=1e5", "train.clip_grad_norm=1e9"],
    }
    lines = {}
    for name, changes in ways.items():
        given = [
            f"sharding.source={raw.resolve()}",
            f"run.root={folder / 'made'}",
            f"run.name={name}",
            *short,
            *changes,
        ]
        done = subprocess.run([*command, "run", str(configs / "digits.yaml"), *given], check=False)
        assert done.returncode == 2, f"the run that should be {name} ended with {done.returncode}"
        lines[name] = folder / "made" / name
    kept = folder / "rehearsed"
    rehearse = ["rehearse", str(configs / "digits-vertex.yaml"), "--source", str(raw), "--preempt", "2"]
    subprocess.run([*command, *rehearse, "--keep", str(kept)], check=True)
    (found,) = kept.glob("buckets/*/lines/*/run.json")
    return {**lines, "preempted": found.parent}


def write_pages(run: Path, raw: Path, folder: Path, wanted: set[str]) -> None:
    """Write the pages; runs are made where one of them is wanted."""
    made = make_runs(raw, folder) if wanted & {"diverged", "failed", "preempted"} else {}
    view = read_run(find_place(str(run)))
    profile = next(stage.uri for stage in view.stages if stage.name == "profile")
    assert view.profile is not None and profile is not None, f"{run} is not the folder of a finished run"
    pages = {
        "finished": render_report(view),
        **{name: render_report(read_run(find_place(str(line)))) for name, line in made.items()},
        "profile": make_profile_page(view.profile, profile),
        "train": render_stage(view, "train"),
        "export": render_stage(view, "export"),
    }
    for name, page in pages.items():
        # Paths as they are seen from the folder that holds runs/.
        content = page.replace(f"{run.resolve().parents[1]}/", "").replace(f"{folder.resolve()}/", "")
        (folder / f"{name}.html").write_text(content, encoding="utf-8")


def main(run: Path, raw: Path, names: list[str]) -> None:
    """Take pictures.

    Args:
        run: Folder of a finished run, or of its line.
        raw: Folder of its images.
        names: Of `SHOTS`; none: all.
    """
    with tempfile.TemporaryDirectory() as temporary, started_chromium() as browser:
        folder = Path(temporary)
        write_pages(run, raw, folder, {SHOTS[name].page for name in names or SHOTS})
        for name in names or SHOTS:
            shot = SHOTS[name]
            with opened(browser, folder / f"{shot.page}.html", width=WIDTH) as shown:
                shown.page.set_viewport_size({"width": WIDTH, "height": shot.height})
                assert shown.complaints == []
                if shot.section:
                    shown.page.evaluate(f"document.getElementById({shot.section!r}).scrollIntoView()")
                content = shown.page.screenshot(path=IMAGES / f"{name}.png")
            print(f"{name}.png: {len(content):,} bytes")
            assert len(content) <= MOST_BYTES, name


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
