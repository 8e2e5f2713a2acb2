"""Submitted pipelines, executed: a child process each.

pipeline_runs     pipeline jobs of the store; their states come back from the child
pipeline          that child; job: what it is given; reports: what it says; task_details: as Vertex shows it
spec              a specification in one form, and what of it is refused by name
dag               the walk over its tasks; task: one of them; values: its inputs and outputs; cache: executions kept
containers        a task's container; placeholders: those in its specification
artifact_metadata how much metadata an artifact may have, and what the consoles render

The rules are those of pipeline_spec.proto (kubeflow/pipelines, api/v2alpha1) and of Vertex AI's pages on pipelines.
docs/rehearsal.md has what is played where neither says.
"""
