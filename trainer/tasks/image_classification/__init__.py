"""Image classification: one of several classes for each image, decoded from RGB and cropped to a square.

task.py        the task; what it shares with other tasks of images is in trainer/tasks/images/
bundle.py      what an export of it has beside graphs (trainer/export/bundle/bundles.py), with its gate
"""
