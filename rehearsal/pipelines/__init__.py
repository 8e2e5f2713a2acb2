"""Submitted pipelines, executed: a child process each.

pipeline_runs     pipeline jobs of the store; their states come back from the child
pipeline          that child; job: what it is given; reports: what it says; task_details: as Vertex shows it
patches           kfp.local's orchestrator, with everything that is private to kfp; kfp_values: its tasks' values
containers        a task's container; placeholders and conditions in its specification; kfp_executor: Python ones
artifact_metadata how much metadata an artifact may have
"""
