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
    fields = {"age": {"column": "uri", "kind": "text"}, "label": {"column": "label", "kind": "class"}}
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


def test_a_source_that_is_not_set_is_left_to_the_stage_and_one_that_is_not_there_is_refused(tmp_path: Path) -> None:
    assert check("").problems == []
    absent = check(tmp_path / "absent")
    assert absent.files == [str(tmp_path / "absent")]
    assert "absent does not exist" in absent.problems[0].given and "one folder of images" in absent.problems[0].allowed


def test_tables_that_are_not_there_or_empty_are_known_before(tmp_path: Path) -> None:
    (problem,) = check(tmp_path / "rows.csv", "tabular_classification", fields=TABLE).problems
    assert "rows.csv does not exist" in problem.given and "images" not in problem.allowed
    (tmp_path / "rows.csv").write_text("x,y\n")
    (problem,) = check(tmp_path / "rows.csv", "tabular_classification", fields=TABLE).problems
    assert problem.given.endswith("rows.csv has no rows") and "below its header" in problem.todo


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
    assert problem.todo == "write one label in each row", "a text has one label"
    pictures = {**fields, "text": {"column": "uri", "kind": "image"}}
    (problem,) = check(tmp_path / "rows.jsonl", fields=pictures).problems
    assert "sharding.fields.stars.kind=classes and task.name=image_multilabel" in problem.todo
    (problem,) = check(write_jsonl(tmp_path, ["a"]), fields={**fields, "x": {"column": "x", "kind": "json"}}).problems
    assert "no column 'x'; it has 'uri', 'label'" in problem.given
    (problem,) = check(write_jsonl(tmp_path, [f"name {n}" for n in range(40)]), fields=fields).problems
    assert "hardly any" in problem.given and "sharding.fields.stars.column" in problem.allowed
    (problem,) = check(write_folders(tmp_path / "raw", "cat", "dog"), fields=fields).problems
    assert "has no columns" in problem.given


def test_labels_with_one_value_are_refused(tmp_path: Path) -> None:
    fields = {"text": {"column": "uri", "kind": "text"}, "label": {"column": "label", "kind": "class"}}
    source = write_jsonl(tmp_path, ["spam"] * 30)
    for task in ("text_classification", "tabular_classification"):
        (problem,) = check(source, task, fields=fields).problems
        assert "column 'label', holds a single class (spam)" in problem.given
        assert "at least 2 classes" in problem.allowed
    assert check(source, "mine:Task", fields=fields).problems == [], "what an own task learns is not known"
    fields["label"]["kind"] = "classes"
    assert check(write_jsonl(tmp_path, [["spam"], []]), "image_multilabel", fields=fields).problems == []
    (problem,) = check(write_jsonl(tmp_path, [[], []]), "image_multilabel", fields=fields).problems
    assert "holds no class" in problem.given
    fields["label"]["kind"] = "number"
    assert check(write_jsonl(tmp_path, [1, 2]), "tabular_regression", fields=fields).problems == []
    (problem,) = check(write_jsonl(tmp_path, [1, 1]), "tabular_regression", fields=fields).problems
    assert "holds 1 in every row" in problem.given


TABLE = {
    "numbers": {"columns": ["*"], "kind": "numbers"},
    "label": {"column": "y", "kind": "class"},
}


@pytest.mark.parametrize(
    ("content", "given", "todo"),
    [
        ("x,y\n1,\xfcber\n2,b\n", "", ""),
        ("j\xf6b,z\n1,b\n", "rows.csv is not UTF-8: its columns are", "iconv"),
        ("x;y\n1;b\n", "one column 'x;y': its cells seem to be separated by ';'", "commas"),
        ("x,y\n\xfc,b\n", "is '\\udcfc' (str)", "iconv"),
        ("x,y\n?,b\n", "is '?' (str)", "a missing value is an empty cell, with sharding.fields.numbers.missing=keep"),
        ("x,y\n?,b\n", "is '?' (str)", "{column: 'x', kind: category}, or kind: text"),
        ('x,y\n"4,069",b\n', "is '4,069' (str)", "decimal point"),
        ("x,y\n2024-01-31,b\n", "is '2024-01-31' (str)", "days since"),
    ],
)
def test_tables_of_other_programs_say_how_to_be_written(tmp_path: Path, content: str, given: str, todo: str) -> None:
    (tmp_path / "rows.csv").write_bytes(content.encode("latin1"))
    problems = check(tmp_path / "rows.csv", "tabular_classification", fields=TABLE).problems
    assert [given in one.given and todo in one.todo for one in problems] == ([True] if given else []), problems


def test_a_table_with_tabs_is_to_be_written_as_csv(tmp_path: Path) -> None:
    (tmp_path / "rows.tsv").write_text("x\ty\n1\tb\n")
    (problem,) = check(tmp_path / "rows.tsv", "tabular_classification", fields=TABLE).problems
    assert "commas between cells" in problem.todo and ".parquet" in problem.allowed


def test_numbers_of_a_text_are_no_table(tmp_path: Path) -> None:
    fields = {"text": {"column": "uri", "kind": "text"}, "label": {"column": "label", "kind": "class"}}
    source = write_csv(tmp_path, [f"{number / 97:.4f}" for number in range(40)])
    (problem,) = check(source, "text_classification", fields=fields).problems
    assert problem.todo == "name the column that holds classes" and "tabular" not in problem.allowed


def test_an_identifier_is_no_category(tmp_path: Path) -> None:
    fields = {"id": {"column": "uri", "kind": "category"}, "label": {"column": "label", "kind": "class"}}
    source = write_csv(tmp_path, ["a", "b"] * 20)
    (problem,) = check(source, "tabular_classification", fields=fields).problems
    assert "column 'uri' (field id, category) has 40 different values in 40 rows" in problem.given
    assert problem.todo == "remove sharding.fields.id"
    assert check(source, "mine:Task", fields=fields).problems == [], "what an own task reads is not known"
    # Names that some rows share may be categories.
    fields["more"] = {"columns": ["*"], "kind": "numbers"}
    rows = "".join(f"{number % 25},{number},{'ab'[number % 2]}\n" for number in range(40))
    source.write_text(f"uri,x,label\n{rows}")
    answer = check(source, "tabular_classification", fields=fields)
    assert answer.problems == [] and "25 different values in 40 rows" in answer.warnings[0]
    assert 'set its kind to text, which keeps the column out of columns: ["*"]' in answer.warnings[0]
