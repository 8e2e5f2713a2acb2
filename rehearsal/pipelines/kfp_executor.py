"""kfp's executor of Python components, with the rehearsal's folder in place of /gcs (see mount.py).

python -m rehearsal.pipelines.kfp_executor ARGUMENTS      instead of `python -m kfp.dsl.executor_main ARGUMENTS`
"""

from __future__ import annotations

import os
import sys

from rehearsal.machines.mount import MOUNT_VARIABLE


def main() -> None:
    """Run it in this process.

    Raises:
        SystemExit: It is on a machine of a custom job.
    """
    if MOUNT_VARIABLE not in os.environ:
        sys.exit(
            "a Python component (@dsl.component) in a custom job is not played by the rehearsal: use a container "
            "component, or run it as a task of its own"
        )
    from kfp.dsl import executor_main
    from kfp.dsl.types import artifact_types

    # The constant is read whenever a path is asked for.
    artifact_types._GCS_LOCAL_MOUNT_PREFIX = os.environ[MOUNT_VARIABLE].rstrip("/") + "/"
    executor_main.executor_main()


if __name__ == "__main__":
    main()
