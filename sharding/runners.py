"""What the Beam graph runs on: the FnApiRunner, in this process, named explicitly.

Never 'DirectRunner': since Beam 2.6x that name tries Prism first, which it downloads, and falls back silently. Never
DaskRunner: it reports DONE with wrong data (docs/decisions). In memory, not in worker processes: those take seconds to
start, and a killed one leaves the job hanging.
"""

from __future__ import annotations

import logging

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner


def make_pipeline() -> beam.Pipeline:
    """Return an empty pipeline on the FnApiRunner; leaving its `with` block runs it and waits for the end."""
    # What Beam logs about a failure comes back as the exception that it raises.
    logging.getLogger("apache_beam").setLevel(logging.CRITICAL)
    # Flags are given, if none: left out, Beam would read this process's own command line.
    return beam.Pipeline(runner=FnApiRunner(), options=PipelineOptions([]))
