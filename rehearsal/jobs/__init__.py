"""Jobs, executed: custom jobs on a spot market, and Dataflow jobs.

custom_jobs       custom jobs of the store, a thread each; gang: the machines of one
market            what takes machines away, and when there are none
dataflow, beam_job    Dataflow jobs: a child process each
logbook           what containers print, and under which resource Cloud Logging would show it
"""
