"""Tasks: what a sample, a loss and a metric are. Nothing outside of this package knows of labels.

protocol.py            the interface: what a task has, with shapes
load.py                finds the task that the configuration names, and holds it against the interface
metrics.py             metrics over an evaluation: reduced over ranks, and what they may be
optional.py            members that a task may have besides, to show something
needs.py               what the tool's tasks need of shards, without torch
classes/               what tasks have in common whose samples have one class each
images/                what tasks have in common whose samples are an image and its classes
image_classification/, image_multilabel/, text_classification/   the tasks that come with the tool
"""
