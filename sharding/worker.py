"""A worker process of the FnApiRunner: runs the steps of the graph that it is sent, and ends with whoever started it.

    python -m sharding.worker

Started by sharding/processes.py with the addresses of the runner in its environment, never by hand.
"""

from __future__ import annotations

import logging
import warnings

from contracts.process import end_with_parent


def main() -> None:
    """Serve until the runner closes the connection."""
    end_with_parent()
    # What Pillow remarks about metadata does not touch the pixels (sharding/task.py).
    warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")
    from apache_beam.runners.worker import sdk_worker_main

    # Failures come back to the runner as the answer to its request.
    logging.getLogger("apache_beam").setLevel(logging.CRITICAL)
    sdk_worker_main.main([])


if __name__ == "__main__":
    main()
