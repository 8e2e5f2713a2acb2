"""The files of own code: which are taken, and their hash."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts import code_files
from contracts.code_files import CodeFiles, read_code
from contracts.errors import ConfigError

NAMES = st.sampled_from(["a.py", "b.py", "sub/a.py", "sub/deep/c.py", "words.txt"])
FILES = st.dictionaries(NAMES, st.binary(max_size=8), min_size=1)


def write(folder: Path, *names: str, content: str = "x = 1\n") -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    return folder


@given(FILES, FILES, st.none() | st.binary(max_size=4))
def test_the_hash_is_a_function_of_names_and_contents_alone(
    one: dict[str, bytes], other: dict[str, bytes], requirements: bytes | None
) -> None:
    found = CodeFiles(one, requirements).sha256
    assert CodeFiles(dict(reversed(one.items())), requirements, ("a link",)).sha256 == found
    assert (CodeFiles(other, requirements).sha256 == found) == (one == other)
    assert CodeFiles(one, (requirements or b"") + b"!").sha256 != found


def test_place_and_time_of_the_files_do_not_count(tmp_path: Path) -> None:
    one = write(tmp_path / "one", "a.py", "sub/b.py")
    other = write(tmp_path / "elsewhere" / "other", "sub/b.py", "a.py")
    os.utime(other / "a.py", (1, 1))
    assert read_code(one) == read_code(other)
    (other / "sub/b.py").write_text("x = 2\n")
    assert read_code(one).sha256 != read_code(other).sha256


def test_hidden_files_caches_environments_links_and_outputs_are_left_out(tmp_path: Path) -> None:
    mine = write(tmp_path / "mine", "net.py", "sub/block.py")
    expected = read_code(mine)
    assert list(expected.contents) == ["net.py", "sub/block.py"] and expected.links == ()
    write(mine, ".git/a.py", ".hidden.py", "__pycache__/a.py", "sub/__pycache__/b.py", "notes.txt")
    write(mine, "venv/pyvenv.cfg", "venv/lib/a.py")
    # A line, what --output named, and the lines' folder.
    write(mine, "line/runs/r/run-start.json", "line/code/a.py", "out/.stage", "out/predict.py", "runs/x/code/a.py")
    assert read_code(mine, outputs=[mine / "runs"]) == expected
    write(tmp_path / "other", "b.py")
    (mine / "linked.py").symlink_to(tmp_path / "other" / "b.py")
    (mine / "sub" / "folder").symlink_to(tmp_path / "other")
    found = read_code(mine, outputs=[mine / "runs"])
    assert found.sha256 == expected.sha256
    assert found.links == ("linked.py", "sub/folder")


def test_further_files_and_requirements_are_taken(tmp_path: Path) -> None:
    mine = write(tmp_path / "mine", "net.py", "words/de.txt", "words/deep/en.txt", "words/.hidden.txt", "other.txt")
    needs = write(tmp_path, "needs.txt") / "needs.txt"
    found = read_code(mine, ["words/**/*.txt"], needs)
    assert list(found.contents) == ["net.py", "words/de.txt", "words/deep/en.txt"]
    assert found.requirements == b"x = 1\n"
    assert len({found.sha256, read_code(mine, ["words/**/*.txt"]).sha256, read_code(mine).sha256}) == 3


@pytest.mark.parametrize(
    ("include", "words"),
    [
        (["*.json"], r"'\*\.json' matches no file"),
        (["../secret.txt"], "relative to code.path"),
        (["/etc/passwd"], "relative to code.path"),
        ([""], "relative to code.path"),
        ([".git/*"], "matches no file"),
    ],
)
def test_patterns_that_take_nothing_or_leave_the_folder_are_refused(
    tmp_path: Path, include: list[str], words: str
) -> None:
    write(tmp_path, "secret.txt", "mine/net.py", "mine/.git/config")
    with pytest.raises(ConfigError, match=words) as caught:
        read_code(tmp_path / "mine", include)
    assert caught.value.exit_code == 2


def test_a_folder_that_is_none_or_holds_no_code_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "file", "empty/notes.txt")
    for name, words in (("missing", "is not there"), ("file", "is no folder"), ("empty", r"holds no \*\.py file")):
        with pytest.raises(ConfigError, match=words):
            read_code(tmp_path / name)
    with pytest.raises(ConfigError, match=r"code\.requirements .* is no file"):
        read_code(write(tmp_path / "mine", "net.py"), requirements=tmp_path / "missing")


def test_too_many_files_and_too_large_ones_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (code_files.MAX_FILES, code_files.MAX_BYTES) == (1000, 10_000_000)
    mine = write(tmp_path, *(f"a{number}.py" for number in range(1000)))
    assert len(read_code(mine).contents) == 1000
    write(mine, "one_more.txt")
    with pytest.raises(ConfigError, match="1001 files") as caught:
        read_code(mine, ["*.txt"])
    assert "set code.path to the folder of your modules alone" in caught.value.todo
    monkeypatch.setattr(code_files, "MAX_BYTES", 1000 * len("x = 1\n"))
    read_code(mine)
    write(mine, "a0.py", content="x = 10\n")
    with pytest.raises(ConfigError, match="too much code: more than"):
        read_code(mine)
