"""Execution of submitted pipelines: a thread each, in the process of the local cloud.

runs              executor of pipeline jobs: states, cancelling, end; job: a PipelineJob and its placeholder values
spec              normalised specifications, and their unsupported fields
walk              execution order of tasks; tasks: a task, its cache and outputs; values: inputs of tasks
containers        containers of tasks; placeholders: substitution in specifications
task_details      PipelineJob.job_detail

Rules follow pipeline_spec.proto (kubeflow/pipelines, api/v2alpha1) and Vertex AI's documentation; docs/rehearsal.md has
our choices where both are unclear.
"""
