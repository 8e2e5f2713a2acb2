"""A Google Cloud on this machine, to rehearse a submission in.

cloud       all of it put together; clock: its time; leftovers: its folder, and what killed rehearsals have left
servers     how clients reach the services: REST, gRPC, TLS, tokens; guard: nothing leaves this machine
vertex      the services and their resources; gcs: buckets; errors: how they refuse
pipelines   submitted pipelines, executed; jobs: custom jobs and Dataflow jobs; machines: what both run on
"""
