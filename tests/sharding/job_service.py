"""Beam's own job service as a process, with as many workers as asked for; prints its port.

    python tests/sharding/job_service.py NUM_WORKERS [BUNDLE_REPEAT]

Beam's service forgets the number of workers and the repeats that its runner knows: they are set here.
"""

import sys
import threading

from apache_beam.portability.api import beam_job_api_pb2
from apache_beam.runners.portability import local_job_service
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

NUM_WORKERS = int(sys.argv[1])
BUNDLE_REPEAT = int(sys.argv[2]) if len(sys.argv) > 2 else 0


class Job(local_job_service.BeamJob):
    def _invoke_runner(self):
        self.set_state(beam_job_api_pb2.JobState.RUNNING)
        runner = FnApiRunner(bundle_repeat=BUNDLE_REPEAT, provision_info=self._provision_info)
        runner._num_workers = NUM_WORKERS
        return runner.run_via_runner_api(self._pipeline_proto, self.pipeline_options())


service = local_job_service.LocalJobServicer(beam_job_type=Job)
print(service.start_grpc_server(0), flush=True)
threading.Event().wait()
