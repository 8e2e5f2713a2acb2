"""Beam's own pool of external workers, each a process, on a port of its own choice; prints its address.

python tests/sharding/worker_pool.py
"""

import threading

from apache_beam.runners.worker.worker_pool_main import BeamFnExternalWorkerPoolServicer

address, server = BeamFnExternalWorkerPoolServicer.start(use_process=True)
print(address, flush=True)
threading.Event().wait()
