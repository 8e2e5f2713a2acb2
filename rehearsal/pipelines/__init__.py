"""Submitted pipelines, executed: a child process each.

pipeline_runs     pipeline jobs of the store; their states come back from the child
pipeline          that child; job: what it is given; reports: what it says; task_details: as Vertex shows it
spec              a specification in one form, and what of it is refused by name; packages: its `pip install` lines
dag               the walk over its tasks; task: one of them; values: its inputs and outputs; cache: executions kept
containers        a task's container; placeholders and conditions in its specification; kfp_executor: Python ones
artifact_metadata how much metadata an artifact may have

The rules are those of pipeline_spec.proto (kubeflow/pipelines, api/v2alpha1) and of Vertex AI's pages on pipelines.
What neither says, or no page of Vertex AI, is played like this:

    what                                                played
    a task only after one whose condition was false     not triggered: its upstream has not succeeded
    a condition over unlike types                       fails the run; CEL itself says false to == of them
    the state of what a cancelled run had not begun     NOT_TRIGGERED, exit tasks too: the proto starts none then
    a task that fails after a sibling, failing fast     goes on to its end; its retries too
    the outputs of a loop in a loop                     a list in a list; kfp's own driver makes one list of them
    an iteration that has not written an output         is left out of the list
    names of iterations                                 TASK-iteration-INDEX, below TASK
    iterations of a loop without a limit                all at once, up to dag.MAX_CONTAINERS containers in all
    a text that is one placeholder and nothing else     becomes the value, whatever its type: launchers need it
    placeholders in a component's default               replaced, as in what the pipeline passes itself
    a cache key of the user's (cacheKey)                with the component's name alone; two tasks at once both run
    importers                                           never cached
    CPU, memory and accelerators of a task              not limited
"""
