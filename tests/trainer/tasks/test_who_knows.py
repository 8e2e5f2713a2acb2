"""Only tasks know what a label is: the other places that name one, or a number of classes, are listed here."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).parents[3]
# A task, and what shows what it has found. sharding/ and records/ know fields of kind class: they write and read them.
TASKS = ("trainer/tasks/", "inspection/tasks/")
PACKAGES = ("contracts", "components", "inspection", "data_tools", "pipeline_tasks", "pipelines", "trainer")
# Whole words of names and of short texts, as `num_classes` in `config.num_classes` and in {"num_classes": 3}.
WORDS = re.compile(r"(?:^|_)(accuracy|num_classes|image_size|top1)(?:$|_)")
WORDS_OF_TRAINER = re.compile(r"(?:^|_)(accuracy|num_classes|image_size|top1|labels?|classes)(?:$|_)")

KNOWN = {
    "contracts/artifacts/export.py": "names of gates",
    "contracts/checked.py": "how many classes a source was seen to have",
    "contracts/config/data.py": "image classification's configuration",
    "contracts/fingerprint.py": "image classification's configuration",
    "data_tools/adopt.py": "shards made elsewhere: an image and its class",
    "pipeline_tasks/experiment.py": "hyperparameters of an experiment",
    "inspection/page/data.py": "classes of shards",
    "inspection/page/facts.py": "classes of shards",
    "inspection/page/export.py": "gates of exports",
    "inspection/report.py": "the metric of an export without one",
    "inspection/run/columns.py": "hyperparameters of a run",
    "inspection/run/data.py": "classes of shards",
    "inspection/run/view.py": "classes of shards",
    "inspection/stages/export.py": "gates of exports",
    "inspection/terminal.py": "classes of shards",
    "pipelines/rules/checks.py": "what the checks before the first stage are asked",
    "pipelines/config_reference.py": "the configuration's keys, by name",
    "pipelines/plan/measured.py": "size of inputs, by which durations were measured",
    "trainer/check/__main__.py": "a task is made before the classes are known",
    "trainer/check/network.py": "a task is made before the classes are known",
    "trainer/check/place.py": "labels of machines",
    "trainer/checkpoint/description.py": "names of a field of kind class, for weights to start from",
    "trainer/checkpoint/framing.py": "names of tensors in a file",
    "trainer/data/bucket/rows.py": "a column of the index",
    "trainer/data/reader.py": "a column of the index",
    "trainer/export/making.py": "outputs that are compared as classes",
    "trainer/export/gates/parity.py": "outputs that are compared as classes",
    "trainer/judge/judging.py": "the classes of two models are paired by name, and none may lose much",
    "trainer/judge/statistics.py": "metrics of classes, and the losses of each",
    "trainer/predict/runtimes.py": "names of classes, which tasks of classes ask it for",
    "trainer/export/gates/samples.py": "a column of the index",
    "trainer/predict/serving.py": "answers of tasks of classes, as lines and tables",
    "trainer/export/bundle/triton.py": "Triton's label file, which a task may have",
    "trainer/export/bundle/triton_config.py": "Triton's label file, which a task may have",
    "trainer/report/result.py": "hyperparameters in TensorBoard",
    "trainer/task.py": "pixels that weights to start from were trained on",
    "trainer/weights/save.py": "names in a folder of transformers",
    "trainer/weights/source.py": "names in a folder of transformers",
    "trainer/weights/start.py": "rows of a head, by their meaning",
    "trainer/weights/tensors.py": "names in a folder of transformers",
}


def names_in(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.arg) or (isinstance(node, ast.keyword) and node.arg):
            yield node.arg
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
            yield node.value


def test_the_places_that_know_of_labels_are_those_listed() -> None:
    found = set()
    for package in PACKAGES:
        words = WORDS_OF_TRAINER if package == "trainer" else WORDS
        for path in sorted((REPOSITORY / package).rglob("*.py")):
            name = path.relative_to(REPOSITORY).as_posix()
            if not name.startswith(TASKS) and any(words.search(word) and "aria" not in word for word in names_in(path)):
                found.add(name)
    assert found - set(KNOWN) == set(), "a task's member, or its page, should know this"
    assert set(KNOWN) - found == set(), "no longer true: take it off the list"
