"""What whoever makes a Triton repository and whoever serves it must agree on."""

# By the tool's own tasks. It is the same in every export of a task: a name with a hash in it would make a new version
# of a model a new model for its clients.
_MODEL_NAMES = {
    "image_classification": "classifier",
    "image_multilabel": "classifier",
    "text_classification": "classifier",
    "tabular_classification": "classifier",
    "tabular_regression": "regressor",
}


def model_name(task: str) -> str:
    """Return the name of the model in the repository, and so of its folder.

    Args:
        task: task.name.
    """
    return _MODEL_NAMES.get(task, "model")
