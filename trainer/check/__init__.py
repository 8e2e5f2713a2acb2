"""Checks before the first stage: can this network be trained and exported at this place? `python -m trainer.check`.

    __main__    the command: one document on stdout (contracts/checked.py)
    own_code    functions of the user's: do they import, and are they in the images of Vertex AI's jobs?
    network     the network, its arguments, patterns of parameters' names, weights: on the meta device
    place       precision, spread over ranks and export targets, against this machine or the one that is planned

Nothing here starts a stage or writes, and no network is used but the object store of `model.weights`, where that is
asked for. What needs torch is named as unchecked where torch is not installed.
"""
