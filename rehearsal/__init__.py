"""A local Google Cloud to rehearse a submission in: the bucket (gcs), Vertex AI (vertex), their guard and clock."""
