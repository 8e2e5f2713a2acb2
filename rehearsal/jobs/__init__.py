"""Execution of jobs: custom jobs on a spot market, and Dataflow jobs.

threads           base class: a thread per job
custom_jobs       custom jobs; machines: the machines of one job; restarts: Vertex AI's restart rules
market            preemptions of spot machines, and regions without machines
dataflow          Dataflow jobs, a process each: beam_job
"""
