"""Methods of Vertex AI, Dataflow, Cloud Logging and other services over one store of resources.

state             shared state of all services; store: resources; listing: filters, order and pages of lists
checks            validation of created resources
pipeline_jobs, custom_jobs, schedules (cron: their times), models, dataflow_jobs, logs, small_services

Request types are those of the client libraries. Not covered: permissions, quotas, existence of accounts, networks, keys
and images, regions and their machine types, error messages, latency and eventual consistency. The checks follow the
documentation; the real service may refuse more.
"""
