"""A configuration, planned by the rules alone and compiled."""

from contracts.config import RunConfig
from pipelines.compile import CompiledLine, compile_line
from pipelines.plan import Plan, outline


def compile_config(config: RunConfig) -> CompiledLine:
    return compile_line(config, outline(config))


def require_plan(config: RunConfig) -> Plan:
    return outline(config).require()
