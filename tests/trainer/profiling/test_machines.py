"""Two machines that are measured together: what their network costs is in rates, hours and the choice."""

import base64
import json
import os
import pickle
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import Pipe
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from pathlib import Path

import pytest

from contracts.artifacts import ComputePoint, ProfileReport, Settings
from contracts.config.resources import ResourcesSection
from contracts.errors import ConfigError, DataError, ErrorDocument, TryAgain
from tests.conftest import small_config
from tests.trainer.launch.machines import Machine, namespaces_are_permitted, network
from trainer.launch.nodes import Nodes
from trainer.profiling.indicators import Counted
from trainer.profiling.machines import Machines, follow
from trainer.profiling.measure import Failed
from trainer.profiling.messages import NotUnderstood, Place, Request, receive, send

# A slot takes some ms, and the gradients are of 4 MB.
NETWORK = {
    "architecture": "exchanged:ManyIdle",
    "arguments": {"seconds": 0.002, "idle_parameters": 1_000_000},
}
CONFIG = small_config(
    model=NETWORK,
    data={"num_workers": 0, "prefetch_factor": 2},
    parallel={"slot_size": "auto"},
    profile={"window_s": 0.5, "slot_sizes": [2, 8]},
    resources={"ranks": 1, "threads": 1, "nodes": 2, "price_usd_per_h": 2.0},
)

COUNTED = json.dumps(
    {
        "kind": "Counted",
        "value": {
            "step_s": 1.5,
            "samples_per_s": 2,
            "data_time_fraction": 0.5,
            "files": {"details/rank-1.2.pt.trace.json.gz": base64.b64encode(b"a trace").decode()},
        },
    }
).encode()


@contextmanager
def listening(machines: Machines, come: Callable[[], None]) -> Iterator[None]:
    """Meet, while somebody comes once the port is open."""
    other = threading.Timer(0.3, come)
    other.start()
    try:
        with machines:
            yield
    finally:
        other.join()


@contextmanager
def pair(root: Path, shards: str, port: int, mbit: float = 0) -> Iterator[list[Machine]]:
    with network(port, 2) as net:
        if mbit:
            net.limit(mbit)
        machines = [Machine(root, shards, CONFIG, node=node, net=net, stage="profile") for node in range(2)]
        for machine in machines:
            machine.start()
        yield machines
        for machine in machines:
            machine.end()


def measured(root: Path, shards: str, port: int, mbit: float) -> ProfileReport:
    with pair(root, shards, port, mbit) as machines:
        for machine in machines:
            assert machine.wait() == 0, machine.stderr()
        (uri,) = {machine.printed.strip().splitlines()[-1] for machine in machines}
    assert {path.name[:6] for path in root.glob("*/traces/rank-*")} == {"rank-0", "rank-1"}
    return ProfileReport.load(uri)


def by_size(report: ProfileReport) -> list[ComputePoint]:
    return sorted(report.compute, key=lambda row: row.slot_size)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(not namespaces_are_permitted(), reason="no network namespaces here")
def test_what_the_network_costs_is_in_rate_hours_and_choice(small_shards: str, tmp_path: Path, port: int) -> None:
    """At 30 Mbit/s the exchange takes some 1.1 s, beside which four slots are hardly slower than one."""
    slow = measured(tmp_path / "slow", small_shards, port, 30)
    fast = measured(tmp_path / "fast", small_shards, port, 10_000)
    for report in (slow, fast):
        rate = report.chosen_point().samples_per_s
        assert report.measured_nodes == 2 and rate and report.estimate
        # Of two ranks, and no range: nothing of it is assumed.
        assert report.estimate.hours == pytest.approx(report.estimate.samples / (2 * rate) / 3600)
        assert report.estimate.usd == pytest.approx(2 * report.estimate.hours)
        assert not any("one machine" in said for said in report.warnings)
        assert report.indicators.communication_fraction is not None
    assert slow.estimate and fast.estimate and slow.estimate.hours > 5 * fast.estimate.hours
    # 4 MB leave each machine.
    assert min(row.last_slot_s for row in slow.compute if row.last_slot_s) > 0.6
    # Fewer slots gain less beside it. What is chosen follows from these rates
    # (test_simulated.py: there nothing disturbs them).
    gains = [large.samples_per_s / small.samples_per_s for small, large in map(by_size, (slow, fast))]  # type: ignore[operator]
    assert gains[0] - 1 < (gains[1] - 1) / 2
    assert slow.findings[0].rule == "R6"


@pytest.mark.line
def test_a_machine_that_is_lost_ends_all_with_75_and_leaves_nothing(
    small_shards: str, tmp_path: Path, port: int
) -> None:
    with pair(tmp_path, small_shards, port) as (first, second):
        first.wait_for(lambda: any(event["event"] == "progress" for event in first.events()))
        second.kill()
        assert first.wait() == 75, first.stderr()
        assert "machine 1 is gone" in first.stderr()
    assert not list(tmp_path.glob("*/manifest.json"))


class Harmful:
    """Unpickled, it makes a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.path),)


def test_nothing_that_a_machine_sends_is_unpickled(
    port: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It proves the key of the job, which is no secret."""
    resources = ResourcesSection().model_copy(update={"setup_timeout_s": 1.5})

    def come() -> None:
        stream = socket.create_connection(("localhost", port))
        # Whatever some library has made the default of this process: with a limit the descriptor would not block.
        stream.settimeout(None)
        connection = Connection(stream.detach())
        answer_challenge(connection, b"ours")
        deliver_challenge(connection, b"ours")
        connection.send(Harmful(tmp_path / "made"))

    with (
        pytest.raises(TryAgain, match="machine 1 of 2 did not come"),
        listening(
            Machines(Nodes(0, 2, "localhost", port, "vertex", ""), key="ours", resources=resources, say=print), come
        ),
    ):
        pass
    assert not (tmp_path / "made").exists()
    assert "is no machine of this job" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (pickle.dumps(Place(node_rank=1)), "JSON|decode"),
        (b'{"kind":"Place"}', "KeyError: 'value'"),
        (b'{"kind":"Popen","value":{}}', "of the kind 'Popen' came; expected was Counted, ErrorDocument"),
        (b'{"kind":"Counted","value":{"step_s":"ls"}}', "valid number"),
        # A file outside of the folder for traces.
        (COUNTED.replace(b"rank-1.2.pt", b"../rank-1.2.pt"), "match pattern"),
        (b'{"kind":"ErrorDocument","value":{"kind":"DataError"}}', "Field required"),
    ],
)
def test_what_is_no_message_is_refused_by_name(said: bytes, why: str) -> None:
    first, second = Pipe()
    first.send_bytes(said)
    with pytest.raises(NotUnderstood, match=why):
        receive(second, Counted, ErrorDocument)


def test_what_is_sent_arrives_as_it_was() -> None:
    first, second = Pipe()
    first.send_bytes(COUNTED)
    counted = receive(second, Counted)
    assert counted.files == {"details/rank-1.2.pt.trace.json.gz": b"a trace"}
    asked = Request(name="open", settings=Settings(slot_size=4, slots_per_rank=2, num_workers=1), number=0)
    told = ErrorDocument.of(DataError("it", allowed="this", todo="that"))
    for message in (counted, asked, Failed("hung", "why"), None, 7, told):
        send(first, message)
        found = receive(second, Counted, Request, Failed, type(None), int, ErrorDocument)
        assert type(found) is type(message)
        assert repr(found) == repr(message)
    send(first, asked)
    assert receive(second, Request).arguments() == {"settings": asked.settings, "number": 0}


def test_a_machine_of_another_job_is_refused_and_one_that_does_not_come_is_named(port: int, tmp_path: Path) -> None:
    resources = ResourcesSection().model_copy(update={"setup_timeout_s": 1.5})
    found: list[BaseException] = []

    def place(node_rank: int) -> Nodes:
        return Nodes(node_rank, 2, "localhost", port, "vertex", "")

    def come() -> None:
        try:
            follow(place(1), key="other", resources=resources, folder=tmp_path, say=print)
        except ConfigError as error:
            found.append(error)

    other = threading.Thread(target=come)
    other.start()
    with (
        pytest.raises(TryAgain, match=r"machine 1 of 2 did not come within 1\.5 s"),
        Machines(place(0), key="ours", resources=resources, say=print),
    ):
        pass
    other.join()
    assert "measures something else" in str(found[0])
