"""Reports of a training: TensorBoard's files, and the gauges and counts that they show.

    scalars           TensorBoard's scalars            readings, data    what steps have found, over ranks
    memory, gpu       gauges; out of memory, explained
    outcomes          counts over the samples of an evaluation
    first_slot        the images of the first slot, as the network got them: written with the first report
    precision_recall  precision and recall by threshold, out of the counts that evaluation keeps
    drawing           pictures by Pillow: a sheet of images with captions, a confusion matrix
    summaries         pictures as TensorBoard's messages
    result            what is written at the end: hyperparameters with results, curves, confusion, worst images

The first rank alone does this. Nothing of it draws random numbers, changes what is trained, or makes a step wait.
"""
