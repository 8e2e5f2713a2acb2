"""A local cloud to rehearse a submission in. Empty until the bucket server comes."""
