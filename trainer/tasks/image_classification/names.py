"""Names of the files that an export of image classification has beside its graphs."""

PREPROCESS_NAME = "preprocess.json"
LABELS_NAME = "labels.json"
