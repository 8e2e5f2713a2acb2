"""A local cloud to rehearse a submission in: so far the bucket (gcs)."""
