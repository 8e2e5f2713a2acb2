"""The resources that services keep, and what all services share.

store, cloud_state  the resources; what is shared beside them: what executes, the clock, the projects, the logs
filters           the grammar of filters; listing: of lists, with order and pages; log_filter: of Cloud Logging
operations, projects             small services that every client asks
resource_rules    rules that several resources share
buckets           the bucket server, as storage.googleapis.com and to be asked whether a bucket is there
"""
