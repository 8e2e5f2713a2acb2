"""Several labels for each image, any number of the classes; thresholds decide which.

task.py         the task; what it shares with other tasks of images is in trainer/tasks/images/
losses.py       binary cross-entropy and focal loss over classes, positive weights
metrics.py      mean average precision, and F1 at one half
passing.py      the numbers of one class: samples above each threshold, average precision, the best threshold
scores.py       the scores of a split over all ranks, exact or in bins
calibration.py  a threshold for each class, chosen on the validation split
report.py       the report on the test split: every class at its threshold, and the worst samples
bundle.py       what an export of it has beside graphs (trainer/export/bundle/bundles.py), with its gate
"""
