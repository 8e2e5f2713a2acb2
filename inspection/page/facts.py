"""What was run, in words: the network, its weights, the data, the training, machine and code."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from inspection.run.before import leaf
from inspection.run.door import as_object
from inspection.run.view import RunView
from pages.markup import shorten

_LONGEST = 300


def facts(view: RunView) -> tuple[tuple[str, str], ...]:
    """Return names and words of what was run; what the run does not say is left out."""
    return tuple((name, shorten(words, _LONGEST)) for name, words in _facts(view) if words)


def _facts(view: RunView) -> Iterator[tuple[str, str]]:
    trained = view.checkpoint
    model = trained.model if trained is not None else as_object(view.config.get("model"))
    train, resources = (as_object(view.config.get(name)) for name in ("train", "resources"))
    arguments = model.get("arguments")
    network = [_words(model, "architecture"), leaf(arguments) if arguments else ""]
    yield "Network", " ".join(filter(None, network))
    yield "Task", view.task if view.config or view.evaluation is not None else ""
    if trained is not None and trained.initial is not None:
        yield "Weights", trained.initial.in_words()
    elif model:
        weights = _words(as_object(view.config.get("model")), "weights")
        yield "Weights", f"from {weights}" if weights else "random at the start"
    yield "Data", _data(view)
    yield (
        "Training",
        ", ".join(
            filter(
                None,
                (
                    _words(train, "epochs", "{} epochs"),
                    _words(train, "max_steps", "at most {} steps"),
                    _words(train, "global_batch_size", "global batch {}"),
                    _words(train, "optimizer"),
                    _words(train, "learning_rate", "learning rate {}"),
                    _words(train, "schedule", "schedule {}"),
                    _words(train, "precision"),
                    _words(as_object(view.config.get("run")), "seed", "seed {}"),
                ),
            )
        ),
    )
    environment = trained.environment if trained is not None else {}
    # A local run's configuration may name the machine of another place.
    machine = as_object(resources.get("machine")) if view.place == "vertex" else {}
    accelerator = _words(machine, "accelerator_type")
    where = [
        _words(machine, "type") if view.place == "vertex" else "a local machine",
        f"{_words(machine, 'accelerator_count')} {accelerator}" if accelerator else "",
        _words(resources, "strategy").lower() if _words(machine, "type") else "",
        f"{environment['ranks']} ranks" if environment.get("ranks", "1") != "1" else "",
        environment.get("device", ""),
    ]
    yield "Machine", ", ".join(filter(None, where))
    code = as_object(view.config.get("code"))
    own = [_words(code, "path", "own code {}"), _words(code, "sha256")[:12]]
    torch = environment.get("torch", "")
    yield "Code", ", ".join(filter(None, (" ".join(filter(None, own)), f"torch {torch}" if torch else "")))


def _data(view: RunView) -> str:
    source = _words(as_object(view.config.get("sharding")), "source")
    if (data := view.data) is None:
        return source
    counts = ", ".join(f"{split.name} {split.samples:,}" for split in data.splits)
    classes = f"{data.num_classes:,} class{'es' if data.num_classes != 1 else ''}" if data.num_classes else ""
    return "; ".join(filter(None, (f"samples: {counts}", classes, f"from {source}" if source else "")))


def _words(section: Any, key: str, form: str = "{}") -> str:
    value = as_object(section).get(key)
    return "" if value is None or value == "" else form.format(value if isinstance(value, str) else leaf(value))
