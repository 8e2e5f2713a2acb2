"""A CustomJob of two machines that write what they know of each other into a bucket.

    shardline rehearse --serve > cloud.env &
    . cloud.env && python examples/local_vertex/custom_job.py

Nothing here knows of the local cloud: with a project's credentials and --bucket it runs on Vertex AI.
"""

import argparse
from typing import Any

from google.cloud import aiplatform, storage

# What each machine runs. The local cloud executes the command here, with the packages that are installed here.
PROGRAM = """
import json, os, sys
from google.cloud import storage
cluster = json.loads(os.environ["CLUSTER_SPEC"])
task = cluster["task"]
print("this is", task["type"], task["index"], "of", sorted(cluster["cluster"]), flush=True)
name = f"hello/{task['type']}-{task['index']}.txt"
storage.Client().bucket(sys.argv[1]).blob(name).upload_from_string("done")
"""


def main() -> None:
    """Run the job, and show what it has left."""
    parser = argparse.ArgumentParser(description="Run a CustomJob of two machines.")
    parser.add_argument("--location", default="us-central1")
    parser.add_argument("--bucket", default="rehearsal-line")
    options = parser.parse_args()
    aiplatform.init(location=options.location, staging_bucket=f"gs://{options.bucket}")
    pool: dict[str, Any] = {
        "replica_count": 1,
        "machine_spec": {"machine_type": "n1-standard-4"},
        "container_spec": {
            "image_uri": "us-docker.pkg.dev/vertex-ai/training/pytorch-cpu.2-4.py310:latest",
            "command": ["python3", "-c", PROGRAM],
            "args": [options.bucket],
        },
    }
    # The first pool is the primary replica, which is alone in it; the second one holds all others.
    job = aiplatform.CustomJob(display_name="hello", worker_pool_specs=[pool, pool])
    job.run()
    print(job.state.name)
    for blob in storage.Client().list_blobs(options.bucket, prefix="hello/"):
        print(f"gs://{options.bucket}/{blob.name}: {blob.download_as_text()}")


if __name__ == "__main__":
    main()
