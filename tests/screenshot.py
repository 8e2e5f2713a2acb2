"""Takes the pictures of pages that docs/ shows: `python -m tests.screenshot PAGE PNG [HEIGHT] [SECTION]`.

PAGE is a file, or an address of this machine; SECTION is the id of the part that the picture begins with.
"""

import sys
from pathlib import Path

from tests.browser import opened, started_chromium

WIDTH, HEIGHT = 1180, 1560


def main(page: str, picture: Path, height: int = HEIGHT, section: str = "") -> None:
    address = page if "://" in page else Path(page)
    with started_chromium() as browser, opened(browser, address, width=WIDTH) as shown:
        shown.page.set_viewport_size({"width": WIDTH, "height": height})
        shown.page.wait_for_load_state("networkidle")
        assert shown.complaints == []
        if section:
            shown.page.evaluate(f"document.getElementById({section!r}).scrollIntoView()")
        shown.page.screenshot(path=picture)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *(int(text) for text in sys.argv[3:4]), *sys.argv[4:])
