"""What is known of a run: read from what it left, whatever place it is in and however it ended.

    find.py      which run a user means by RUN, and which runs are below a root
    read.py      everything that its documents, events and logs say: one RunView
    reading.py   a reading under way: what cannot be read is written down
    door.py      the one door to its files: of bounded size, and really in the line
    training.py  the training's time, curves, marks, cost and evaluation
    view.py      the words of a RunView: what the pages, the terminal and the server show
    state.py     whether it runs, has ended, or was killed
    stages.py    what its stages did: attempts, durations, errors
    data.py      what is in its shards
    documents.py parsed documents and scalars, kept within bounds for the next reading
    curves.py    the training's curves; scalars.py reads one file of them
    marks.py     checkpoints, preemptions and resumes on the time axis
    money.py     what its machines cost, and would have cost on demand
    before.py    what differs from the run before in the line
    lineage.py   every hash from the source's listing to the engine
    pictures.py  images out of shards, as small JPEGs
    summary.py   the line of a run in a list

Nothing here executes or unpickles anything of a run, and nothing of a run is trusted: what cannot be read is named in
`RunView.missing`, with the reason, and everything else is shown.
"""
