"""Services of Vertex AI and its neighbours over one store of resources: what they answer, check, keep and start.

state             what all services share; store: the resources; listing: filters, order and pages of lists
checks            what is refused, by field
pipeline_jobs, custom_jobs, schedules (cron: their times), models, dataflow_jobs, logs, small_services

Request types are the client libraries' own. Not proven here: permissions, quotas, that an account, network, key or
image exists, regions and their machine types, the real service's wording, latency and eventual consistency. Rules are
written from documentation: a request that is accepted here may be refused there.
"""
