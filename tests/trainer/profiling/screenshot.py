"""Takes the picture of a page that docs/ shows: `python -m tests.trainer.profiling.screenshot PAGE PNG`."""

import sys
from pathlib import Path

from tests.browser import opened, started_chromium

WIDTH, HEIGHT = 1180, 1560


def main(page: Path, picture: Path) -> None:
    with started_chromium() as browser, opened(browser, page, width=WIDTH) as shown:
        shown.check_quiet()
        shown.page.set_viewport_size({"width": WIDTH, "height": HEIGHT})
        shown.page.screenshot(path=picture)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
