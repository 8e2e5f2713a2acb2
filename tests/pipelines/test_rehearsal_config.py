"""What a configuration becomes for a rehearsal."""

import shutil
import stat
from pathlib import Path
from types import SimpleNamespace

import pytest

from contracts.config import RunConfig
from contracts.config.load import load_config
from contracts.errors import ConfigError
from pipelines.images import find_images
from pipelines.rehearse.config import prepare
from pipelines.rehearse.rehearse import open_folder
from tests.pipelines.compiled import compile_config
from tests.pipelines.images import IMAGES

ROOT = Path(__file__).parents[2]


def write_files(folder: Path, counts: dict[str, int]) -> Path:
    for name, count in counts.items():
        (folder / name).mkdir(parents=True)
        for number in range(count):
            (folder / name / f"{number:03d}.png").write_text(name)
    return folder


def test_a_laptops_configuration_gets_stand_ins_that_are_named(tmp_path: Path) -> None:
    source = write_files(tmp_path / "raw", {"a": 1})
    config = load_config(ROOT / "configs" / "digits.yaml", [f"sharding.source={source}"])
    prepared = prepare(config, None)
    named = {text.partition(" ")[0].rstrip(":") for text in prepared.stand_ins}
    assert named == {
        "cloud.project",
        "cloud.region",
        "cloud.images.cpu",
        "cloud.images.gpu",
        "run.root",
        "resources.machine.type",
        "sharding.source",
    }
    # What is filled in is enough to submit; broken, an image counts as not built.
    assert find_images(prepared.config) == (prepared.config, ())
    assert compile_config(prepared.config).spec["pipelineInfo"]["name"] == "shardline"


@pytest.mark.parametrize("source", ["gs://bucket/raw", ""])
def test_a_source_that_is_not_here_is_asked_for(source: str) -> None:
    with pytest.raises(ConfigError, match="--source"):
        prepare(RunConfig.model_validate({"sharding": {"source": source}}), None)
    with pytest.raises(ConfigError, match="does not exist"):
        prepare(RunConfig.model_validate({"sharding": {"source": source}}), Path("/nowhere"))


def test_a_folder_stands_for_the_manifest_in_it(tmp_path: Path) -> None:
    folder = write_files(tmp_path / "raw", {"a": 1})
    config = RunConfig.model_validate({"sharding": {"source": "gs://bucket/lists/photos.csv"}})
    with pytest.raises(ConfigError, match=r"photos\.csv, which sharding\.source names, in --source .* does not exist"):
        prepare(config, folder)
    (folder / "photos.csv").write_text("uri,label\na/000.png,a\n")
    prepared = prepare(config, folder)
    assert prepared.source == folder / "photos.csv"
    prepared.copy_source(tmp_path / "buckets")
    assert (tmp_path / "buckets/bucket/lists/photos.csv").exists()
    assert (tmp_path / "buckets/bucket/lists/a/000.png").exists()


def test_weights_are_served_where_the_configuration_has_them(tmp_path: Path) -> None:
    source = write_files(tmp_path / "raw", {"a": 1})
    weights = tmp_path / "w.pt"
    weights.write_bytes(b"weights")
    local = load_config(ROOT / "configs" / "digits-vertex.yaml", [*IMAGES, f"model.weights={weights}"])
    prepared = prepare(local, source)
    assert prepared.config.model.weights == "gs://rehearsal-weights/w.pt"
    assert "rehearsal-weights" in prepared.buckets and len(prepared.stand_ins) == 1
    prepared.copy_weights(tmp_path / "buckets")
    assert (tmp_path / "buckets" / "rehearsal-weights" / "w.pt").read_bytes() == b"weights"
    remote = load_config(ROOT / "configs" / "digits-vertex.yaml", [*IMAGES, "model.weights=gs://models/vit"])
    with pytest.raises(ConfigError, match="has no access to the cloud"):
        prepare(remote, source)
    prepared = prepare(remote, source, source)
    assert (prepared.config, prepared.stand_ins) == (remote, [])
    prepared.copy_weights(tmp_path / "buckets")
    assert (tmp_path / "buckets" / "models" / "vit" / "a" / "000.png").exists()
    with pytest.raises(ConfigError, match="do not exist"):
        prepare(remote, source, Path("/nowhere"))


def test_a_part_of_the_source_is_spread_over_its_classes(tmp_path: Path) -> None:
    source = write_files(tmp_path / "raw", {"many": 90, "few": 10, "one": 1})
    config = load_config(ROOT / "configs" / "digits-vertex.yaml")
    prepared = prepare(config, source)
    assert prepared.copy_source(tmp_path / "all") == (101, 101)
    copied, there = prepared.copy_source(tmp_path / "part", 20)
    place = tmp_path / "part" / "acme-vision-line" / "raw" / "digits"
    counts = {folder.name: len(list(folder.iterdir())) for folder in place.iterdir()}
    assert (copied, there) == (sum(counts.values()), 101)
    assert counts == {"many": 17, "few": 1, "one": 1}
    assert (place / "many" / "000.png").read_text() == "many"


def test_only_what_a_manifest_names_is_copied(tmp_path: Path) -> None:
    """Broken, it copies a home with its keys into the rehearsal's folder, which --keep leaves there."""
    home = write_files(tmp_path / "home", {"photos": 2, ".ssh": 0})
    (home / ".ssh" / "id_rsa").write_text("a key")
    (tmp_path / "outside.png").write_text("of somebody else")
    names = ["photos/000.png", "./photos/../photos/001.png", "../outside.png", ".ssh", "gone.png"]
    (home / "train.csv").write_text("uri,label\n" + "".join(f"{name},a\n" for name in names))
    config = RunConfig.model_validate({"sharding": {"source": str(home / "train.csv")}})
    buckets = tmp_path / "kept" / "buckets"
    assert prepare(config, None).copy_source(buckets) == (3, 3)
    found = {path.relative_to(buckets).as_posix() for path in buckets.rglob("*") if path.is_file()}
    assert found == {f"rehearsal-source/{file}" for file in ("train.csv", "photos/000.png", "photos/001.png")}


def test_the_folder_of_a_rehearsal_is_its_users_alone(tmp_path: Path) -> None:
    config = RunConfig.model_validate({"sharding": {"source": str(write_files(tmp_path / "raw", {"a": 1}))}})
    kept = tmp_path / "kept"
    kept.mkdir(mode=0o755)
    open_folder(kept, prepare(config, None), None)
    folders = [kept, *(path for path in kept.rglob("*") if path.is_dir())]
    assert {stat.S_IMODE(path.stat().st_mode) for path in folders} == {0o700}


def test_a_source_that_the_disk_has_no_room_for_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = RunConfig.model_validate({"sharding": {"source": str(write_files(tmp_path / "raw", {"a": 3}))}})
    monkeypatch.setattr(shutil, "disk_usage", lambda _folder: SimpleNamespace(free=2))
    with pytest.raises(ConfigError, match=r"the disk of .* has 0\.0 GB left"):
        prepare(config, None).copy_source(tmp_path / "buckets")
    assert not [path for path in (tmp_path / "buckets").rglob("*") if path.is_file()]
