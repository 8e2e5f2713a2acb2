"""Weights that training starts from (model.weights): found, read, matched with the network's tensors.

    source.py   what a URI names, its files, classes and hash; reads no tensor, imports no torch
    tensors.py  tensors by name, from any source; nothing is unpickled but what torch's weights_only loader allows
    parts.py    tensors that belong to inputs, such as columns, by their meaning
    start.py    the network takes what fits, and says what it took; called by trainer/model/network.py
    save.py     a folder that others load, of the export
    previous.py what `model.weights: previous` and the training's name are made of; imports no torch
    fit.py      the same question before any stage runs, by names and shapes alone (trainer/check)

docs/fine-tuning.md is the user's page.
"""
