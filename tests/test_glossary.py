"""docs/glossary.md: each word is in use, where the page says it is, and the page is linked and sorted."""

import importlib.util
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (ROOT / "docs" / "glossary.md").read_text().splitlines()
    if line.startswith("| ") and not line.startswith("| word")
]


def test_the_page_is_sorted_and_linked() -> None:
    words = [word for word, _, _ in ROWS]
    assert len(words) > 30 and words == sorted(set(words))
    assert "(docs/glossary.md)" in (ROOT / "README.md").read_text()


@pytest.mark.parametrize(("word", "meaning", "module"), ROWS, ids=[row[0] for row in ROWS])
def test_a_word_is_used_where_the_page_says(word: str, meaning: str, module: str) -> None:
    assert meaning.endswith(".")
    spec = importlib.util.find_spec(module.strip("`"))
    assert spec is not None and spec.origin is not None
    path = Path(spec.origin)
    files = list(path.parent.rglob("*.py")) if path.name == "__init__.py" else [path]
    used = re.compile(rf"(?<![a-z]){word.replace(' ', '[_ ]')}(s|es)?(?![a-z])", re.IGNORECASE)
    assert any(used.search(one.read_text()) for one in files), f"no {word} in {module}"
    command = ["git", "-C", str(ROOT), "grep", "-liwE", f"{word.replace(' ', '[_ ]')}s?", "--", "docs", "README.md"]
    pages = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).stdout.split()
    assert set(pages) - {"docs/glossary.md"}, f"no other page uses {word}"
