"""Process of one Dataflow job: `python -m rehearsal.jobs.beam_job URI`.

URI is the pipeline staged by DataflowRunner. Its steps, including pickled functions, run unchanged in this process with
the FnApiRunner, in place of the SDK container. Exits with 0 if the pipeline is done.
"""

from __future__ import annotations

import sys
import warnings

from contracts import storage
from contracts.process import end_with_parent


def main(uri: str) -> int:
    """Run a staged pipeline to its end."""
    end_with_parent()
    warnings.simplefilter("ignore")
    import logging

    from apache_beam.internal import pickler
    from apache_beam.options.pipeline_options import PipelineOptions
    from apache_beam.portability import common_urns, python_urns
    from apache_beam.portability.api import beam_runner_api_pb2
    from apache_beam.runners.portability.fn_api_runner import FnApiRunner
    from apache_beam.runners.runner import PipelineState

    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s", stream=sys.stdout)
    pipeline = beam_runner_api_pb2.Pipeline.FromString(storage.read_bytes(uri))
    for environment in pipeline.components.environments.values():
        if environment.urn == common_urns.environments.DOCKER.urn:
            environment.urn, environment.payload = python_urns.EMBEDDED_PYTHON, b""
            del environment.dependencies[:]
    # The default pickler of DataflowRunner.
    pickler.set_library("cloudpickle")
    result = FnApiRunner().run_via_runner_api(pipeline, PipelineOptions([]))
    state = result.wait_until_finish()
    logging.info("the pipeline ended as %s", state)
    return 0 if state == PipelineState.DONE else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
