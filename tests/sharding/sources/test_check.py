"""`python -m sharding.sources.check`: sources whose labels are not those that a task learns."""

import json
from pathlib import Path
from typing import Any

import pytest

import sharding.sources.check
from contracts import storage
from contracts.checked import CheckAnswer
from contracts.config import ShardingSection
from sharding.sources.check import check_source, main


def check(source: Path | str, task: str = "image_classification", **section: Any) -> CheckAnswer:
    return check_source(ShardingSection(source=str(source), **section), task).answer()


def write_csv(folder: Path, labels: list[str], header: str = "uri,label") -> Path:
    path = folder / "rows.csv"
    path.write_text("\n".join([header, *(f'{number}.png,"{label}"' for number, label in enumerate(labels))]) + "\n")
    return path


def write_jsonl(folder: Path, labels: list[Any]) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps({"uri": f"{n}.png", "label": label}) + "\n" for n, label in enumerate(labels)))
    return path


def write_folders(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).mkdir(parents=True)
    return root


@pytest.mark.parametrize("labels", [["cat", "dog"] * 20, [3, 5] * 20, ["0.5", "1.5"] * 20, ["a", "b", "c"]])
def test_classes_pass_and_are_counted(tmp_path: Path, labels: list[Any]) -> None:
    answer = check(write_jsonl(tmp_path, labels))
    assert (answer.problems, answer.warnings, answer.unchecked) == ([], [], [])
    assert answer.num_classes == len(set(labels))
    assert answer.files == [str(tmp_path / "rows.jsonl")]


@pytest.mark.parametrize("labels", [[["cat", "indoor"], ["dog"]], [["cat"], ["dog"]]])
def test_lists_of_labels_are_for_another_task(tmp_path: Path, labels: list[list[str]]) -> None:
    path = write_jsonl(tmp_path, labels)
    (problem,) = check(path).problems
    assert "line 1: a list of labels, cat" in problem.given
    assert "task image_classification learns one label for each image" in problem.given
    assert "set task.name to image_multilabel" in problem.todo
    answer = check(path, "image_multilabel")
    assert (answer.problems, answer.num_classes) == ([], len({label for row in labels for label in row}))
    assert check(path, "mine:Task").problems == [], "what an own task learns is not known"


def test_separated_labels_are_refused(tmp_path: Path) -> None:
    path = write_csv(tmp_path, ["cat|indoor", "dog"])
    assert "a list of labels" in check(path, label_separator="|").problems[0].given
    assert check(path).problems == []
    assert check(path, "image_multilabel", label_separator="|").problems == []


def test_single_labels_are_for_another_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_csv(tmp_path, ["cat|indoor", "dog"])
    (problem,) = check(path, "image_multilabel").problems
    assert "labels are single ones (cat|indoor, dog)" in problem.given
    assert "sharding.label_separator" in problem.todo and "task.name to image_classification" in problem.todo
    (problem,) = check(write_folders(tmp_path / "raw", "cat", "dog"), "image_multilabel").problems
    assert "class folders give each image one" in problem.given and "task.name to image_classification" in problem.todo
    # Only Vertex AI's forms show a list just where there are several labels, which may be further down.
    monkeypatch.setattr(sharding.sources.check, "MAX_ROWS", 1)
    assert check(path, "image_multilabel").problems
    path.write_text("gs://bucket-1/1.png,cat\ngs://bucket-1/2.png,dog\n")
    assert check(path, "image_multilabel").problems == []


@pytest.mark.parametrize(
    "labels", [[f"{number / 97:.4f}" for number in range(40)], [f"-{number}.55e1" for number in range(40)]]
)
def test_numbers_are_no_classes(tmp_path: Path, labels: list[str]) -> None:
    (problem,) = check(write_csv(tmp_path, labels)).problems
    assert "task image_classification learns classes, not numbers" in problem.given
    assert "40 different ones in 40 rows" in problem.given
    assert "set task.name to tabular_regression" in problem.todo
    fields = {"age": {"column": "uri", "kind": "category"}, "label": {"column": "label", "kind": "class"}}
    (problem,) = check(tmp_path / "rows.csv", "tabular_classification", fields=fields).problems
    assert "task tabular_classification learns classes, not numbers" in problem.given
    assert "sharding.fields.label.kind to number" in problem.todo and "class of each row" in problem.allowed
    fields["label"]["kind"] = "number"
    assert check(tmp_path / "rows.csv", "tabular_regression", fields=fields).problems == []


def test_a_number_with_a_fraction_in_json_is_refused_as_sharding_does(tmp_path: Path) -> None:
    (problem,) = check(write_jsonl(tmp_path, [0.25, 0.5])).problems
    assert "the label is 0.25 (float)" in problem.given and "tabular_regression" in problem.todo


def test_a_label_an_image_is_refused(tmp_path: Path) -> None:
    (problem,) = check(write_csv(tmp_path, [f"person {number}" for number in range(30)])).problems
    assert "30 different labels in 30 rows" in problem.given
    assert "sharding.label_column" in problem.allowed


def test_only_the_first_rows_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharding.sources.check, "MAX_ROWS", 30)
    path = write_jsonl(tmp_path, [["cat", "dog"][number % 2] for number in range(31)] + [0.5])
    answer = check(path)
    assert (answer.problems, answer.num_classes) == ([], None)
    assert "behind row 30" in answer.unchecked[0].what
    # Of many classes the first rows may hold nearly as many: no mistake by itself.
    many = check(write_csv(tmp_path, [f"person {number % 60}" for number in range(600)]))
    assert many.problems == []
    assert "is sharding.label_column=label the class of each image?" in many.warnings[0]


def test_folders_of_splits_pass_and_their_classes_are_counted(tmp_path: Path) -> None:
    folders = [f"{split}/{name}" for split in ("Train", "val", "test") for name in ("cat", "dog")]
    answer = check(write_folders(tmp_path / "raw", *folders, "val/owl", ".cache"))
    assert (answer.problems, answer.num_classes) == ([], 3)
    assert {str(tmp_path / "raw"), str(tmp_path / "raw/val")} <= set(answer.files)
    (problem,) = check(tmp_path / "raw", group_by="(cat)").problems
    assert "which give the splits" in problem.given


def test_folders_that_may_be_either_are_refused(tmp_path: Path) -> None:
    (problem,) = check(write_folders(tmp_path / "raw", "train/cat", "test/cat", "bus/cat")).problems
    assert "folders test, train, which are called like splits, beside bus, which are not" in problem.given
    (problem,) = check(write_folders(tmp_path / "flat", "train", "test")).problems
    assert "without class folders in them" in problem.given and "rename test, train" in problem.todo


@pytest.mark.parametrize(
    ("folders", "num_classes"),
    [
        (("cat", "dog"), 2),
        (("train/a", "train/b", "bus/a", "bus/b"), 2),
        (("train/a", "train/b", "test/c", "test/d"), 4),
        (("train/a", "train/b"), 2),
        (("train",), 1),
    ],
)
def test_other_folders_pass(tmp_path: Path, folders: tuple[str, ...], num_classes: int) -> None:
    answer = check(write_folders(tmp_path / "raw", *folders))
    assert (answer.problems, answer.num_classes) == ([], num_classes)


def test_what_the_stage_finds_at_once_is_left_to_it(tmp_path: Path) -> None:
    assert check("").problems == []
    absent = check(tmp_path / "absent")
    assert (absent.problems, absent.files) == ([], [str(tmp_path / "absent")])


def test_a_source_that_cannot_be_read_is_left_unchecked(bucket_server: object) -> None:
    for source in ("gs://no-such-bucket/raw", "s3://bucket/raw"):
        answer = check(source)
        assert answer.problems == [] and not answer.complete
        assert f"the labels in {source}" in str(answer.unchecked[0])


def test_a_bucket_is_looked_at(bucket_server: object, capsys: pytest.CaptureFixture[str]) -> None:
    storage.publish("gs://bucket-1/rows.jsonl", b'{"uri": "1.png", "label": ["a", "b"]}\n')
    for split in ("train", "val", "more"):
        for name in ("cat", "dog"):
            storage.publish(f"gs://bucket-1/raw/{split}/{name}/1.png", b"")
    for source, given in (("rows.jsonl", "a list of labels"), ("raw", "holds the folders train, val, which")):
        assert main(["--config-json", json.dumps({"sharding": {"source": f"gs://bucket-1/{source}"}})]) == 0
        answer = CheckAnswer.model_validate_json(capsys.readouterr().out)
        assert given in answer.problems[0].given and answer.files == []


def test_rows_of_named_fields_are_of_their_kinds(tmp_path: Path) -> None:
    fields = {"text": {"column": "uri", "kind": "text"}, "stars": {"column": "label", "kind": "class"}}
    answer = check(write_jsonl(tmp_path, ["good", "bad"] * 20), fields=fields)
    assert (answer.problems, answer.warnings, answer.num_classes) == ([], [], 2)
    several = {**fields, "stars": {"column": "label", "kind": "classes"}}
    answer = check(write_jsonl(tmp_path, [["good", "new"], ["bad"]]), fields=several)
    assert (answer.problems, answer.num_classes) == ([], 3)
    (problem,) = check(write_jsonl(tmp_path, ["good", ["bad"]]), fields=fields).problems
    assert "line 2, column 'label' (field stars, class) is ['bad']" in problem.given
    assert "sharding.fields.stars.kind to classes and task.name to image_multilabel" in problem.todo
    (problem,) = check(write_jsonl(tmp_path, ["a"]), fields={**fields, "x": {"column": "x", "kind": "json"}}).problems
    assert "no column 'x'; it has 'uri', 'label'" in problem.given
    (problem,) = check(write_jsonl(tmp_path, [f"name {n}" for n in range(40)]), fields=fields).problems
    assert "hardly any" in problem.given and "sharding.fields.stars.column" in problem.allowed
    (problem,) = check(write_folders(tmp_path / "raw", "cat", "dog"), fields=fields).problems
    assert "has no columns" in problem.given
