"""From a compiled line to a run of Vertex Pipelines: requests, templates, rungs, schedules."""
