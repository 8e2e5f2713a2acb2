"""The registry of a line: numbers without gaps whoever writes at once, one alias at any moment, damage by name."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from contracts import storage
from contracts.artifacts.promotion import Action, Judgement
from contracts.errors import DataError
from contracts.promotions import (
    ProductionChanged,
    decide,
    find_former,
    find_model,
    find_production,
    list_models,
    read_decisions,
    register_model,
)
from rehearsal.gcs import BucketServer


@pytest.fixture(params=["file", "gs"])
def line(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "gs":
        request.getfixturevalue("bucket_server")
        return "gs://bucket-1/lines/digits"
    return storage.normalise(tmp_path / "digits")


def judged(champion: str, verdict: str = "promote") -> Judgement:
    return Judgement.model_validate({"verdict": verdict, "reasons": ["better"], "champion": champion})


def move(line: str, action: Action, run: str) -> str:
    register_model(line, run=run, export=storage.join(line, "export", run), proven=True)
    return decide(line, by="me", action=action, run=run, reasons=["by hand"]).production


def test_runs_that_end_at_once_get_one_order(line: str) -> None:
    runs = [f"run-{number}" for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda run: move(line, "promoted", run), runs))
        # Tasks that are tried again: nothing new.
        list(pool.map(lambda run: register_model(line, run=run, export="elsewhere", proven=False), runs))
    assert [model.number for model in list_models(line)] == list(range(1, 9))
    assert {model.run for model in list_models(line)} == set(runs) and all(model.proven for model in list_models(line))
    decisions = read_decisions(line)
    assert [each.number for each in decisions] == list(range(1, 9))
    assert [each.before for each in decisions] == ["", *(each.production for each in decisions[:-1])]
    assert find_production(line) == find_model(line, decisions[-1].run)


def test_a_run_decides_once_and_only_beside_the_model_that_is_in_production(line: str) -> None:
    for run in ("a", "b", "c"):
        register_model(line, run=run, export="x", proven=True)
    first = decide(line, by="run a", action="promoted", run="a", reasons=["first"], judgement=judged(""))
    assert decide(line, by="run a", action="kept", run="a", reasons=["again"], judgement=judged("a", "keep")) == first
    decide(line, by="run b", action="promoted", run="b", reasons=["better"], judgement=judged("a"))
    with pytest.raises(ProductionChanged, match="run c was judged beside a, and b is in production now"):
        decide(line, by="run c", action="promoted", run="c", reasons=["better"], judgement=judged("a"))
    kept = decide(line, by="run c", action="kept", run="c", reasons=["worse"], judgement=judged("b", "keep"))
    assert (kept.before, kept.production) == ("b", "b") and len(read_decisions(line)) == 3


def test_going_back_twice_goes_back_two_promotions(line: str) -> None:
    assert find_former(read_decisions(line)) == "" and find_production(line) is None
    for run in ("a", "b", "c"):
        move(line, "promoted", run)
    for expected in ("b", "a"):
        assert find_former(read_decisions(line)) == expected
        assert move(line, "rolled back", expected) == expected
    assert find_former(read_decisions(line)) == ""
    move(line, "promoted", "c")
    assert find_former(read_decisions(line)) == "a"


def test_a_kill_between_two_requests_leaves_the_old_or_the_new_model(
    line: str, bucket_server: BucketServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    move(line, "promoted", "a")
    publish, reached = storage.publish, []

    def killed(uri: str, content: bytes) -> None:
        if len(reached) == allowed:
            raise KeyboardInterrupt
        publish(uri, content)
        reached.append(uri)

    for allowed, expected in ((0, "a"), (1, "a"), (2, "b")):
        reached.clear()
        with monkeypatch.context() as patched:
            patched.setattr(storage, "publish", killed)
            if allowed < 2:
                with pytest.raises(KeyboardInterrupt):
                    move(line, "promoted", f"b{allowed}")
            else:
                move(line, "promoted", "b")
        found = find_production(line)
        assert found is not None and found.run == expected


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda uri: storage.delete(storage.join(uri, "1.json")), "1.json is missing"),
        (lambda uri: storage.replace(storage.join(uri, "2.json"), b"{}"), "2.json cannot be read"),
        (
            lambda uri: storage.replace(storage.join(uri, "2.json"), storage.read_bytes(storage.join(uri, "1.json"))),
            "2.json is number 1",
        ),
    ],
)
@pytest.mark.parametrize("folder", ["models", "promotions"])
def test_what_is_damaged_is_refused_by_name(tmp_path: Path, folder: str, harm: object, said: str) -> None:
    line = storage.normalise(tmp_path)
    for run in ("a", "b"):
        move(line, "promoted", run)
    assert callable(harm)
    harm(storage.join(line, folder))
    with pytest.raises(DataError, match=rf"{folder}/{said}[\s\S]*allowed: documents as they were written"):
        find_production(line)
