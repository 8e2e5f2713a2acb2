"""Places that run jobs (pipelines.jobs.Backend): this machine's processes, and Vertex AI's CustomJobs."""
