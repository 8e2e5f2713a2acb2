"""The fixtures of tests/rehearsal/execution: a bucket server, and executors of pipelines on it."""

from tests.rehearsal.execution.conftest import bucket, bucket_environment, make_pipelines, pipelines

__all__ = ["bucket", "bucket_environment", "make_pipelines", "pipelines"]
