"""Tasks: the samples, network, loss and metrics of a problem. Labels have a meaning only in this package.

task.py              Task, the base class of all of them
loading.py           the class of task.name; errors of own code with member, file and line
on_device.py         a task in a training step: checked loss, denominator
metrics.py           metrics over an evaluation and its ranks
shard_checks.py      requirements of built-in tasks on shards, without torch
classification.py    one class per sample: loss, metrics, outcomes, report
image.py             tasks on images; image classification
image_transforms.py  image file to square crop; normalisation
augmentation.py      RandAugment, colour jitter, mixup, CutMix
multilabel.py        several labels per image
text.py              text classification
"""
