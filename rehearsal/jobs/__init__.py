"""Jobs, executed: custom jobs on a spot market, and Dataflow jobs.

threads           what all kinds of jobs have in common: a thread per job
custom_jobs       custom jobs of the store; machines: those of one job; restarts: Vertex AI's rules
market            which spot machines are taken away, and regions without machines
dataflow          Dataflow jobs, a process each: beam_job
"""
