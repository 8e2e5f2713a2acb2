"""What the local Vertex executes: submitted pipelines, custom jobs on a spot market, Dataflow jobs.

    pipeline_runs   pipeline jobs of the store, a child process each; their states come back from it
    pipeline        that child; job: what it is given; reports: what it says; task_details: as Vertex shows it
    patches         kfp.local's orchestrator, with everything that is private to kfp; kfp_values: its tasks' values
    containers      a task's container; placeholders and conditions in its specification; mount: /gcs without root
    custom_jobs     custom jobs of the store; gang: the machines of one; node: one machine; market: what takes them away
    dataflow        Dataflow jobs; beam_job: the process that runs one
    processes       containers as processes that end with everything below them
    logbook         what containers print

Nothing here imports kfp, Beam or the stages into the server's process: they run in children.
"""
