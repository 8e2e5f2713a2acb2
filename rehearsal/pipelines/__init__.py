"""Submitted pipelines, executed: a thread each, in the process of the local cloud.

runs              pipeline jobs of the store: states, cancelling, end; job: one of them, and its placeholders
spec              a specification in one form, and what of it is refused by name
walk              the order of its tasks; tasks: one of them, its cache and outputs; values: inputs of tasks
containers        a task's container; placeholders: those in its specification
task_details      what PipelineJob.job_detail shows

The rules are those of pipeline_spec.proto (kubeflow/pipelines, api/v2alpha1) and of Vertex AI's pages on pipelines;
docs/rehearsal.md has our choice where neither is clear.
"""
