"""The resources that services keep, and what all services share.

store, world      the resources; what is shared beside them: what executes, the clock, the projects, the logs
listing, log_filter     filters, order and pages of lists; Cloud Logging's query language
operations, projects, quotas     small services that every client asks
resource_rules    rules that several resources share
buckets           the bucket server, as storage.googleapis.com and to be asked whether a bucket is there
"""
