"""What tasks have in common whose samples are an image with one class or several; no task by itself.

image_task.py  the members of such a task, in the order in which a sample meets them
network.py     the network of the configuration: transformers, or module:callable
transforms.py  image file to square crop; normalisation
augment/       RandAugment, colour jitter, mixup, CutMix
head.py        the classifier's head, and rows of another head by class name
bundle.py      what an export has beside graphs (trainer/export/bundle/bundles.py), as far as all of them have it
shipped.py     runs the predict.py of an export on the files of the test split, for its gate
predict.py     the program that ships; answers.py is `shardline predict`, which uses it
"""
