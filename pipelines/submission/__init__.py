"""From a compiled line to a run of Vertex Pipelines: requests, local data, schedules."""
