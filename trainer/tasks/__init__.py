"""Tasks: what a sample, a loss and a metric are. Nothing outside of this package knows of labels.

protocol.py            the interface: what a task has, with shapes
load.py                finds the task that the configuration names, and holds it against the interface
metrics.py             metrics over an evaluation: reduced over ranks, and what they may be
optional.py            members that a task may have besides, to show something
image_classification/  the task that comes with the tool
"""
