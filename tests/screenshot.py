"""Takes the pictures that docs/ shows: `python -m tests.screenshot RUN RAW [NAME...]`.

RUN is the folder of a finished run of the demo (`runs/digits`), which most pictures are of, RAW that of its images
(`raw/digits`). A run that diverges is made of the same images. A picture is one screen of its
page, and has 300 kB at most.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from inspection.find import find_place
from inspection.read import read_run
from inspection.report.page import render_report
from tests.browser import opened, started_chromium

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
WIDTH = 1180
MOST_BYTES = 300_000


@dataclass(frozen=True)
class Shot:
    """A picture: of which page, and how high."""

    page: str
    height: int


SHOTS = {"report": Shot("finished", 1400), "report-diverged": Shot("diverged", 800)}


def make_diverged_run(raw: Path, folder: Path) -> Path:
    """Make a run that diverges, of the same images; return its line."""
    given = [
        f"sharding.source={raw.resolve()}",
        f"run.root={folder / 'made'}",
        "run.name=diverged",
        'profile.method="off"',
        "train.epochs=4",
        "train.learning_rate=1e5",
        "train.clip_grad_norm=1e9",
    ]
    command = [sys.executable, "-m", "pipelines.cli", "run", str(ROOT / "configs" / "digits.yaml"), *given]
    done = subprocess.run(command, check=False)
    assert done.returncode == 2, f"the run that should diverge ended with {done.returncode}"
    return folder / "made" / "diverged"


def write_pages(run: Path, raw: Path, folder: Path, wanted: set[str]) -> None:
    """Write the pages; the run that diverges is made where its page is wanted."""
    view = read_run(find_place(str(run)))
    assert view.export is not None, f"{run} is not the folder of a finished run"
    pages = {"finished": render_report(view)}
    if "diverged" in wanted:
        pages["diverged"] = render_report(read_run(find_place(str(make_diverged_run(raw, folder)))))
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
                content = shown.page.screenshot(path=IMAGES / f"{name}.png")
            print(f"{name}.png: {len(content):,} bytes")
            assert len(content) <= MOST_BYTES, name


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
