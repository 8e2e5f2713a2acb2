"""Names of the files that an export of a task of images has beside its graphs, and of the classes in them."""

PREPROCESS_NAME = "preprocess.json"


def class_of(entry: object) -> str:
    """Return the name of the class that an entry of labels.json is about.

    Args:
        entry: The name, or where classes have thresholds a dictionary with it as `label`.
    """
    return str(entry["label"] if isinstance(entry, dict) else entry)
