"""A local Google Cloud to rehearse a submission in.

cloud       all of it put together; clock: its time; leftovers: its folder, and what killed rehearsals have left
doors       how calls reach services; resources: what services keep; vertex: the services
pipelines   submitted pipelines, executed; jobs: custom jobs and Dataflow jobs; machines: what both run on
gcs         the bucket server; guard: nothing leaves this machine
"""
