"""The page of a profiling run, from what its stage has left."""

from pathlib import Path

import pytest

from contracts import storage
from contracts.artifacts import FileEntry
from contracts.artifacts.trace import SUMMARY_NAME, summaries_to_json, summaries_type
from inspection.profile_page import make_profile_page, write_profile_page
from pages.profile import render_page
from tests.trainer.profiling.reports import gpu_report, gpu_summary

NAMED = gpu_report().model_copy(update={"files": [FileEntry(name=SUMMARY_NAME, bytes=1, crc32c="00000000")]})


def test_the_page_is_of_the_report_and_the_summaries_beside_it(tmp_path: Path) -> None:
    content, uri = summaries_to_json([gpu_summary(0), gpu_summary(1)]), storage.normalise(tmp_path)
    (tmp_path / SUMMARY_NAME).write_bytes(content)
    assert make_profile_page(NAMED, uri) == render_page(NAMED, summaries_type().validate_json(content))
    # No file of the folder that the report does not name.
    assert make_profile_page(gpu_report(), uri) == render_page(gpu_report(), [])


@pytest.mark.parametrize("content", [None, b"[", b'[{"rank": 1}]', b'[{"step_s": NaN}]', "a link"])
def test_a_page_says_why_summaries_cannot_be_read(tmp_path: Path, content: bytes | str | None) -> None:
    folder = tmp_path / "report"
    folder.mkdir()
    if isinstance(content, bytes):
        (folder / SUMMARY_NAME).write_bytes(content)
    elif content is not None:
        (tmp_path / "secret").write_bytes(summaries_to_json([gpu_summary()]))
        (folder / SUMMARY_NAME).symlink_to(tmp_path / "secret")
    page = make_profile_page(NAMED, storage.normalise(folder))
    assert page.count("the summary of the traces cannot be read: ") == 5
    assert 'data-figure="choice.slot_size"' in page and 'data-figure="kernels.0' not in page


def test_a_page_that_cannot_be_written_is_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "manifest.json").write_bytes(gpu_report().to_json())
    (tmp_path / "file").touch()
    uri = storage.normalise(tmp_path)
    assert write_profile_page(uri, storage.join(uri, "file")) is None
    assert "profile.html could not be written" in capsys.readouterr().err
    assert write_profile_page(uri, uri) == storage.join(uri, "profile.html")
    assert (tmp_path / "profile.html").read_text() == render_page(gpu_report(), [])
