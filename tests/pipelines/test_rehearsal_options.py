"""What the options of `shardline rehearse` mean, and that nonsense is refused."""

from typing import Any

import pytest

from contracts.config import RunConfig
from contracts.errors import ConfigError
from pipelines.rehearse.options import parse_network, parse_preempt, parse_reading
from pipelines.rehearse.rehearse import Wanted, _processes
from tests.conftest import small_config


def config(**resources: Any) -> RunConfig:
    return RunConfig.model_validate(small_config(resources=resources))


def test_kinds_of_network_and_readings() -> None:
    assert [parse_network(text) for text in ("auto", "namespaces", "loopback")] == ["auto", "namespaces", "loopback"]
    with pytest.raises(ConfigError, match="--network docker"):
        parse_network("docker")
    assert parse_reading("lenient") == "lenient"
    with pytest.raises(ConfigError, match="--restarts kind"):
        parse_reading("kind")
    assert (parse_preempt("2"), parse_preempt("0.5/h")) == ((2, 0.0), (0, 0.5))
    with pytest.raises(ConfigError, match="--preempt 2/d"):
        parse_preempt("2/d")


def test_ranks_that_the_configuration_names_are_played_as_they_are() -> None:
    named = config(ranks=8, machine={"type": "n1-standard-4"})
    assert _processes(named, Wanted(), 2) is None
    with pytest.raises(ConfigError, match=r"--processes 2, and resources\.ranks = 8"):
        _processes(named, Wanted(processes_per_node=2), 2)
    open_ = config(machine={"type": "a2-highgpu-8g"})
    assert _processes(open_, Wanted(processes_per_node=3), 2) == 3
    # One per GPU, if this machine can hold them.
    assert 1 <= (_processes(open_, Wanted(), 2) or 0) <= 8
    assert _processes(config(machine={"type": "n1-standard-4"}), Wanted(), 2) is None
