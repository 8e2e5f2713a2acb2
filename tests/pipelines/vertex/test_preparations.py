"""`submit` of data that lies on this machine, and of code that no image holds yet."""

import hashlib
import json
import os
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from contracts import storage
from contracts.config.load import load_config, parse_config
from contracts.errors import ConfigError
from pipelines.cli import app
from pipelines.images.build import find_sources, hash_sources, why_to_build
from pipelines.images.record import ImageRecord
from pipelines.place import make_absolute
from pipelines.rehearse.config import stand_in_image
from pipelines.submission import file_hashes
from pipelines.submission.local_data import LocalData, find_local_data, upload
from rehearsal.gcs import BucketServer
from tests.conftest import write_pictures
from tests.pipelines.test_images import DOCKER, write_tool
from tests.pipelines.vertex.conftest import PROJECT, REGION, Cloud


def submit(*words: str, code: int = 0) -> Result:
    result = CliRunner().invoke(app, ["submit", "line.yaml", *words])
    assert result.exit_code == code, result.output
    return result


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with data and a configuration in it."""
    monkeypatch.chdir(tmp_path)
    write_pictures(tmp_path / "raw", per_class=4)
    (tmp_path / "raw" / ".DS_Store").write_text("hidden")
    values = {
        "run": {"name": "line", "root": "gs://bucket-1/runs"},
        "sharding": {"source": "raw"},
        "resources": {"machine": {"type": "n1-standard-4"}},
        "cloud": {
            "project": PROJECT,
            "region": REGION,
            "images": {"repository": f"{REGION}-docker.pkg.dev/{PROJECT}/shardline"},
        },
    }
    (tmp_path / "line.yaml").write_text(yaml.safe_dump(values))
    return tmp_path


def names_in_bucket() -> set[str]:
    return {one.name for one in storage.list_objects("gs://bucket-1/runs/line/source")}


def test_data_is_uploaded_and_images_are_built_once_after_a_question(
    cloud: Cloud, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = write_tool(here / "tools", "docker", DOCKER)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    monkeypatch.setattr("pipelines.images.build._require_tool", lambda _: "docker")
    refused = submit(code=2)
    assert (
        "uploads" in refused.stderr and "12 files" in refused.stderr and "builds images: there is no" in refused.stderr
    )
    assert "there is no terminal to ask on" in refused.stderr
    assert not names_in_bucket() and not list(here.glob("images-*"))
    # What a plan refuses is not paid for.
    assert "cloud.region" in submit("--yes", "cloud.region=x", code=2).stderr
    assert not names_in_bucket() and not list(here.glob("images-*"))

    made = submit("--yes", "--run-id", "first-1")
    assert "run first-1 submitted" in made.stderr
    (folder,) = {name.partition("/")[0] for name in names_in_bucket() if "/" in name}
    files = {path.relative_to(here / "raw").as_posix() for path in (here / "raw").rglob("*.png")}
    assert names_in_bucket() == {f"{folder}.json", *(f"{folder}/{name}" for name in files)}
    manifest = storage.read_bytes(f"gs://bucket-1/runs/line/source/{folder}.json")
    assert hashlib.sha256(manifest).hexdigest() == folder and set(json.loads(manifest)["files"]) == files
    record = ImageRecord.model_validate_json((here / f"images-{PROJECT}.json").read_text())
    assert record.sources_sha256 == hash_sources(find_sources())
    calls = (here / "calls.jsonl").read_text()
    job = json.loads(submit("--dry-run").stdout)["pipelineJob"]
    assert record.trainer in json.dumps(job)

    # Nothing is left to do: nobody is asked, nothing is built.
    again = submit("--run-id", "first-1")
    assert "run first-1 exists" in again.stderr and "uploads" not in again.stderr
    assert (here / "calls.jsonl").read_text() == calls
    # Data that changed goes elsewhere.
    (here / "raw" / "red" / "000.png").write_bytes((here / "raw" / "blue" / "000.png").read_bytes())
    assert "uploads" in submit(code=2).stderr
    # Nor are images of other sources built again where they are to be kept.
    (here / f"images-{PROJECT}.json").write_text(
        record.model_copy(update={"sources_sha256": "a" * 64}).model_dump_json()
    )
    asked = submit(code=2).stderr
    kept = submit("--keep-images", code=2).stderr
    assert "builds images" in asked and "uploads" in kept and "builds images" not in kept


def test_an_upload_that_was_killed_is_gone_on_with(bucket_server: BucketServer, here: Path) -> None:
    config = make_absolute(load_config(here / "line.yaml"))
    data = find_local_data(config, lambda _: None)
    assert data is not None and data.of(config).sharding.source == data.source and not data.is_there
    names = sorted(data.files)
    # Some files are there, one under its name but of other bytes, as a file that was written to meanwhile.
    for name in names[:5]:
        storage.publish(storage.join(data.folder, name), (data.root / name).read_bytes())
    storage.publish(storage.join(data.folder, names[5]), b"other")
    said: list[str] = []
    with pytest.raises(ConfigError, match="holds something else"):
        upload(data, said.append)
    assert not data.is_there
    storage.delete(storage.join(data.folder, names[5]))
    # The refusal also ended sends that had not begun: how many, the threads decide.
    missing = [name for name in names if not storage.exists(storage.join(data.folder, name))]
    assert names[5] in missing
    upload(data, said.append)
    assert data.is_there and said[-1] == f"uploads {len(missing)} files to {data.folder}"
    upload(data, said.append)
    assert len(said) == 2


def test_a_file_that_changes_meanwhile_leaves_nothing_finished(bucket_server: BucketServer, here: Path) -> None:
    data = find_local_data(make_absolute(load_config(here / "line.yaml")), lambda _: None)
    assert data is not None
    name = min(data.files)
    content = (data.root / name).read_bytes()
    (data.root / name).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(ConfigError, match=f"{name} was changed while it was uploaded"):
        upload(data, lambda _: None)
    assert not data.is_there and not storage.exists(storage.join(data.folder, name))
    (data.root / name).write_bytes(content)
    upload(data, lambda _: None)
    assert data.is_there


def test_of_a_file_of_texts_the_file_alone_is_taken(here: Path) -> None:
    (here / "rows.csv").write_text("review,label\ngood,a\n")
    given = ["sharding.source=rows.csv"]
    fields = "sharding.fields={text: {column: review, kind: text}, label: {column: label, kind: class}}"
    rows = find_local_data(make_absolute(load_config(here / "line.yaml", [*given, fields])), lambda _: None)
    assert rows is not None and list(rows.files) == ["rows.csv"] and rows.source.endswith("/rows.csv")
    for nothing in ("gs://bucket-1/raw", "absent", "line.yaml"):
        given = [f"sharding.source={nothing}"]
        assert find_local_data(make_absolute(load_config(here / "line.yaml", given)), lambda _: None) is None


def test_a_link_to_a_folder_above_it_is_refused_and_another_is_followed(here: Path, tmp_path: Path) -> None:
    config = make_absolute(load_config(here / "line.yaml"))
    (here / "elsewhere").mkdir()
    (here / "elsewhere" / "a.png").write_bytes(b"a")
    (here / "raw" / "red" / "more").symlink_to(here / "elsewhere")
    data = find_local_data(config, lambda _: None)
    assert data is not None and "red/more/a.png" in data.files
    # Around two links: more -> elsewhere, elsewhere/back -> raw.
    (here / "elsewhere" / "back").symlink_to(here / "raw")
    with pytest.raises(ConfigError, match=r"raw/red/more/back is a link to a folder above it, .*raw: ") as caught:
        find_local_data(config, lambda _: None)
    assert caught.value.todo == "remove the link"


def test_what_has_not_changed_is_read_once_and_a_long_reading_is_told(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_absolute(load_config(here / "line.yaml"))
    monkeypatch.setattr(file_hashes, "TOLD_BYTES", 1)
    # As if all were written long ago.
    monkeypatch.setattr(file_hashes, "_SETTLED_NS", -(10**9))

    def read() -> tuple[int, LocalData]:
        said: list[str] = []
        data = find_local_data(config, said.append)
        assert data is not None and len(said) <= 1
        return int(said[0].removeprefix("reads ").partition(" ")[0]) if said else 0, data

    count, first = read()
    assert count == 12 and read() == (0, first)
    # Of the same size and with its former mtime: ctime tells.
    path = here / "raw" / "red" / "000.png"
    status, content = path.stat(), path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    count, second = read()
    assert count == 1 and second.folder != first.folder
    assert hashlib.sha256(path.read_bytes()).hexdigest() == second.files["red/000.png"].sha256
    # What was written to a moment ago is read again, since clocks of file systems are coarse.
    monkeypatch.setattr(file_hashes, "_SETTLED_NS", 10**12)
    path.write_bytes(content)
    assert [read()[0], read()[0]] == [1, 12]


def test_when_images_are_to_be_built(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = yaml.safe_load((here / "line.yaml").read_text())
    config = parse_config(values, where="test")
    assert why_to_build(config) == f"there is no images-{PROJECT}.json"
    references = {role: stand_in_image(role) for role in ("pipeline", "trainer", "export")}
    named = config.model_copy(
        update={"cloud": config.cloud.model_copy(update={"images": config.cloud.images.model_copy(update=references)})}
    )
    assert why_to_build(named) == ""

    def record(**changes: str) -> None:
        made = ImageRecord(**{**references, "built_at": "2026-11-24", **changes})
        (here / f"images-{PROJECT}.json").write_text(made.model_dump_json())

    record()
    assert why_to_build(config) == ""
    record(sources_sha256="a" * 64)
    assert "are of other sources than this program (--keep-images" in why_to_build(config)
    assert why_to_build(config, any_sources=True) == ""
    record(sources_sha256=hash_sources(find_sources()))
    assert why_to_build(config) == ""
    (here / "needs.txt").write_text("timm\n")
    needs = parse_config({**values, "code": {"requirements": "needs.txt"}}, where="test")
    assert "other code.requirements" in why_to_build(needs)


def test_of_a_manifest_the_files_that_it_names_are_taken_and_no_others(here: Path) -> None:
    """A manifest in a home folder brought all that lies there to the bucket."""
    (here / "letter.txt").write_text("private")
    (here / "photos.csv").write_text("uri,label\nraw/red/000.png,red\nraw/blue/001.png,blue\n../elsewhere.png,blue\n")
    found = find_local_data(make_absolute(load_config(here / "line.yaml", ["sharding.source=photos.csv"])), print)
    assert found is not None
    assert sorted(found.files) == ["photos.csv", "raw/blue/001.png", "raw/red/000.png"]
