"""Reports of a training: TensorBoard's files, and the gauges and counts that they show.

    scalars           TensorBoard's scalars            readings, data    what steps have found, over ranks
    memory, gpu       gauges; out of memory, explained
    result            what is written at the end: hyperparameters with results, and the task's report

The first rank alone does this. Nothing of it draws random numbers, changes what is trained, or makes a step wait.
"""
