"""Image classification: one of several classes for each image, decoded from RGB and cropped to a square.

task.py        the task: members in the order in which a sample meets them
network.py     the network of the configuration: transformers, or module:callable
transforms.py  image file to square crop; normalisation
augment/       RandAugment, colour jitter, mixup, CutMix
bundle.py      what an export of it has beside graphs (trainer/export/bundles.py), with its gate
predict.py     the program that ships; answers.py is `shardline predict`, which uses it
"""
