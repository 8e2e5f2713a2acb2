"""`shardline ui` as its requests see it: what is answered, what is refused, what is never read."""

import asyncio
import csv
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from contracts import storage
from contracts.errors import ConfigError
from contracts.events import EVENTS_NAME
from contracts.promotions import decide
from inspection.page import SECTIONS
from inspection.run.find import RunPlace
from inspection.run.read import read_run
from inspection.run.summary import RunLine, RunLister
from inspection.run.view import RunView
from inspection.ui import compare_page
from inspection.ui import store as store_module
from inspection.ui.addresses import NotFoundError, RunKey
from inspection.ui.files import WINDOW_BYTES, read_piece
from inspection.ui.guard import POLICY, allowed_hosts
from inspection.ui.run_list import COLUMNS, difference, row
from inspection.ui.server import listen, serve
from inspection.ui.store import RunStore
from pages.parts import Words
from rehearsal.gcs import BucketServer
from tests.inspection.lines import Planted, alive, plant
from tests.inspection.ui.serving import Serving, serving

FRESH = "roses/20261122-070000-0001"
RESUMED = "tulips/20261122-070000-0002"
LOG = f"/run/{FRESH}/log/train/20261122-070000-0001"


# --- every answer -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    ["/", f"/run/{FRESH}", "/api/runs", f"/api/run/{FRESH}", LOG, f"{LOG}/text", "/static/live.js", "/nothing",
     f"/compare?run={FRESH}&run={RESUMED}", "/line/roses"],
)  # fmt: skip
def test_every_answer_carries_the_policy(server: Serving, path: str) -> None:
    headers = server.ask(path).headers
    assert headers["content-security-policy"] == POLICY
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert headers["cache-control"] == "no-store"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
@pytest.mark.parametrize("path", ["/", "/api/runs", "/static/live.js"])
def test_only_reading_is_answered(server: Serving, method: str, path: str) -> None:
    answer = server.ask(path, method=method)
    assert answer.status == 405
    assert answer.headers["allow"] == "GET, HEAD"
    assert answer.headers["content-security-policy"] == POLICY


def test_head_says_what_get_would(server: Serving) -> None:
    answer = server.ask("/api/runs", method="HEAD")
    assert (answer.status, answer.content) == (200, b"")


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "[::2]"])
def test_another_host_is_refused(server: Serving, host: str) -> None:
    answer = server.ask("/api/runs", host=host)
    assert answer.status == 400
    assert b"roses" not in answer.content


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:9", "127.0.0.1:1", "[::1]:7"])
def test_names_of_this_machine_are_answered(server: Serving, host: str) -> None:
    assert server.ask("/api/runs", host=host).status == 200


def test_this_machine_has_its_names_and_those_that_are_given() -> None:
    hosts = allowed_hosts("box.example", "127.0.1.1", ("Proxy.example",))
    own = {"localhost", "127.0.0.1", "[::1]", "box.example", "127.0.1.1", "proxy.example"}
    assert hosts.names == own
    assert all(hosts.allow(f"{name}:8321") for name in own)
    assert not any(hosts.allow(name) for name in ("192.0.2.7", "evil.example", ""))


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "192.0.2.7"])
def test_elsewhere_addresses_and_own_names_are_answered(address: str) -> None:
    hosts = allowed_hosts(address, address, ("box.example", "2001:db8::5"))
    for name in ("192.0.2.7", "192.0.2.7:80", "[2001:db8::5]:8321", "localhost", "BOX.example:1", socket.gethostname()):
        assert hosts.allow(name), name
    # Another site's name, whatever it makes of it: that is how its pages would reach this server.
    for name in ("evil.example", "evil.example:8321", "192.0.2.7.evil.example", "", "a.box.example", "[192.0.2.7"):
        assert not hosts.allow(name), name


@pytest.mark.parametrize("name", ["http://box.example", "box.example:80", "*", "", "a b"])
def test_a_name_that_is_none(root: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="--allow-host"):
        serve(str(root), host="127.0.0.1", port=0, allow_hosts=(name,), say=print, warn=print)


# --- runs -------------------------------------------------------------------------------------------------------------


def test_the_list_and_its_rows(server: Serving) -> None:
    found = server.get("/api/runs")["runs"]
    assert {run["address"]: run["state"] for run in found} == {
        f"/run/{RESUMED}": "succeeded",
        f"/run/{FRESH}": "succeeded",
        "/run/roses/20261122-060000-0003": "failed",
    }
    rows = server.get("/api/rows?since=")
    assert set(rows["order"]) == set(rows["rows"]) == {run["address"].removeprefix("/run/") for run in found}
    drawn = "<title>validation/accuracy: first 95.00\u00a0%, last 99.50\u00a0%, best 99.50\u00a0%</title>"
    assert {path for path, html in rows["rows"].items() if drawn in html} == {FRESH, RESUMED}
    assert drawn in server.ask("/line/tulips").text
    again = server.get(f"/api/rows?since={rows['version']}")
    assert (again["order"], again["rows"], again["version"]) == (None, {}, rows["version"])
    # The numbers of another server mean nothing.
    assert server.get("/api/rows?since=other.99")["rows"] == rows["rows"]


def test_a_new_run_is_one_row(small_shards: str, tmp_path: Path) -> None:
    plant(tmp_path / "a", small_shards)
    with serving(tmp_path) as server:
        rows = server.get("/api/rows?since=")
        later = plant(tmp_path / "b", small_shards, kind="failed", run_id="20261122-080000-0009")
        wait_for(lambda: server.get(f"/api/rows?since={rows['version']}")["order"])
        news = server.get(f"/api/rows?since={rows['version']}")
        assert list(news["rows"]) == [f"b/{later.run_id}"]
        assert set(news["order"]) == {f"b/{later.run_id}", "a/20261122-070000-0001"}


def test_a_root_may_be_a_line(root: Path) -> None:
    with serving(root / "tulips") as server:
        assert [run["address"] for run in server.get("/api/runs")["runs"]] == [f"/run/{RESUMED}"]
        assert server.ask(f"/run/{RESUMED}").status == 200
        assert server.ask(f"/run/{FRESH}").status == 404


@pytest.mark.parametrize("number", ["9" * 5000, "-1", "٣", "1e9"])
def test_a_version_that_is_no_number_of_ours(server: Serving, number: str) -> None:
    rows = server.get("/api/rows")
    boot = rows["version"].partition(".")[0]
    assert server.get(f"/api/rows?since={boot}.{quote(number)}")["rows"] == rows["rows"]


def test_a_run_is_sent_once(server: Serving) -> None:
    first = server.get(f"/api/run/{FRESH}")
    assert first["ended"]
    assert list(first["parts"]) == ["header", "overview", "tail", *(name for name, _ in SECTIONS[1:])]
    assert first["parts"]["tail"].strip() == '<section id="tail" hidden></section>', "it ended well"
    again = server.get(f"/api/run/{FRESH}?known={first['digest']}")
    assert again == {"digest": first["digest"], "ended": True, "clocks": {}, "parts": {}}
    # Of another form, as a page of another version has it.
    assert server.get(f"/api/run/{FRESH}?known=a.b") == first


def test_curves_and_marks(server: Serving) -> None:
    found = server.get(f"/api/curves/{RESUMED}")
    assert {curve["name"] for curve in found["curves"]} >= {"train/loss", "validation/accuracy"}
    assert {"preemption", "resume", "checkpoint"} & {mark["kind"] for mark in found["marks"]}
    assert min(time for curve in found["curves"] for time in curve["times"]) >= 0


def test_a_comparison_says_what_differs(server: Serving) -> None:
    body = server.body(f"/api/compare?run={FRESH}&run={RESUMED}")
    configuration = body[body.index('id="configuration"') : body.index('id="choice"')]
    assert "train.learning_rate" in configuration
    assert "0.01" in configuration and "0.02" in configuration
    assert "model.architecture" not in configuration
    lineage = body[body.index('id="lineage"') :]
    assert "same" in lineage


def test_a_comparison_says_how_the_data_differ(root: Path) -> None:
    store = RunStore(str(root))
    line, run_id = FRESH.split("/")
    shown = asyncio.run(store.show(RunKey(line, run_id)))
    lines = store._lister.read()[:2]
    counts = dict(shown.data)
    one = next(name for name in counts if name.startswith("train samples of "))
    more = replace(shown, data=list({**counts, **{name: counts[name] + 6 for name in (one, "train samples")}}.items()))
    body = compare_page.compare([shown, more], lines).parts["data"]
    assert body.count("+6</span>") == 2 and re.findall('<th scope="row">(.* samples of .*)</th>', body) == [one]


def test_a_comparison_says_which_is_better(server: Serving) -> None:
    (line,) = [
        each for each in RunLister(str(storage.local_path(server.store.root))).read() if each.line.endswith("tulips")
    ]
    result, duration = (next(each for each in COLUMNS if each.title == title) for title in ("Test result", "Duration"))

    def with_values(**values: Any) -> RunLine:
        return line.model_copy(update={"headline": line.headline.model_copy(update=values)})

    a, b = with_values(metric_value=0.9, wall_s=100.0), with_values(metric_value=0.92, wall_s=130.0)
    assert difference(result, a, b) == Words("+2.00\u00a0points, better", style="difference good")
    assert difference(result, b, a) == Words("\u22122.00\u00a0points, worse", style="difference bad")
    assert difference(duration, a, b) == Words("+30\u00a0s, worse", style="difference bad")
    assert difference(result, a, a) == Words("the same", style="difference")
    loss = {"metric": "loss", "direction": "min"}
    less = difference(result, with_values(metric_value=0.5, **loss), with_values(metric_value=0.4, **loss))
    assert less is not None and less.style == "difference good"
    assert difference(result, a, with_values(metric_value=0.4, **loss)) is None
    assert difference(result, a, with_values(metric_value=None)) is None
    assert 'class="difference' in server.body(f"/api/compare?run={FRESH}&run={RESUMED}")


def test_the_list_as_a_table(own: Planted) -> None:
    own.line.rename(own.line.with_name("=1+1"))
    with serving(own.line.parent) as server:
        answer = server.ask("/api/runs.csv")
        assert answer.headers["content-disposition"].startswith("attachment")
        (row,) = csv.DictReader(answer.text.splitlines())
        assert (row["line"], row["state"], row["metric"], row["metric_value"]) == (
            "'=1+1", "succeeded", "accuracy", "0.9375",
        )  # fmt: skip
        assert (row["parameter.learning_rate"], row["metric.test_loss"]) == ("0.01", "0.25")
        assert 'href="/api/runs.csv"' in server.ask("/").text


@pytest.mark.parametrize(
    "query",
    ["", "?run=roses&run=roses", f"?run={FRESH}", f"?run={FRESH}&run=../../etc/passwd", "?" + 9 * f"run={FRESH}&"],
)
def test_a_comparison_of_nothing(server: Serving, query: str) -> None:
    assert server.ask(f"/compare{query}").status == 404
    assert server.ask("/line/nothing").status == 404


def test_an_ended_run_is_read_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = count_reads(monkeypatch)
    with serving(root) as server:
        for _ in range(3):
            server.get(f"/api/run/{FRESH}")
            server.get(f"/api/curves/{FRESH}")
    assert reads == ["20261122-070000-0001"]


def test_what_is_asked_for_at_once_is_read_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        started.set()
        assert go_on.wait(60)

    reads = count_reads(monkeypatch, wait)
    with serving(root) as server:
        answers: list[int] = []
        asks = [threading.Thread(target=lambda: answers.append(server.ask(f"/api/run/{FRESH}").status))]
        asks[0].start()
        assert started.wait(60)
        for _ in range(4):
            asks.append(threading.Thread(target=lambda: answers.append(server.ask(f"/api/run/{FRESH}").status)))
            asks[-1].start()
        # Others are answered meanwhile.
        assert server.ask("/static/live.js").status == 200
        go_on.set()
        for ask in asks:
            ask.join()
    assert answers == [200] * 5
    assert len(reads) == 1


def test_what_is_remembered_is_bounded(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = count_reads(monkeypatch)
    with serving(root, cache_bytes=1) as server:
        for run in (FRESH, RESUMED, FRESH):
            server.get(f"/api/run/{run}")
    assert len(reads) == 3


@pytest.mark.usefixtures("soon_stale")
def test_pictures_are_decoded_once(small_shards: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = plant(tmp_path / "roses", small_shards, kind="running")
    decoded: list[bool] = []

    def counted(place: RunPlace, **options: Any) -> RunView:
        decoded.append(options.get("pictures", True))
        return read_run(place, **options)

    monkeypatch.setattr(store_module, "read_run", counted)
    with alive(run), serving(tmp_path) as server:

        def is_read_again() -> bool:
            assert "data:image/jpeg" in server.body(f"/api/run/{FRESH}")
            return len(decoded) > 2

        wait_for(is_read_again)
    assert decoded[:3] == [True, False, False]


def count_reads(monkeypatch: pytest.MonkeyPatch, before: Any = None) -> list[str]:
    reads: list[str] = []

    def counted(place: RunPlace, **options: Any) -> RunView:
        reads.append(place.run_id)
        if before is not None:
            before()
        return read_run(place, **options)

    monkeypatch.setattr(store_module, "read_run", counted)
    return reads


def wait_for(condition: Any) -> Any:
    """Return what the condition gives when it holds."""
    pause = threading.Event()
    for _ in range(600):
        if found := condition():
            return found
        pause.wait(0.1)
    raise AssertionError("it did not come about in a minute")


# --- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "/run/../../etc/passwd",
        "/run/roses/..",
        "/run/%2e%2e/%2e%2e",
        "/run/..%2f..%2fetc/passwd",
        "/run/roses%2f20261122-070000-0001/x",
        "/run//etc/passwd",
        "/run/roses/%00",
        f"/run/{FRESH}/log/train/..%2f..%2f..%2f..%2fruns%2f20261122-070000-0001%2frun.json",
        f"/run/{FRESH}/log/train/%2fetc%2fpasswd",
        f"/run/{FRESH}/log/../../../../../../etc/passwd",
        f"/run/{FRESH}/log/train/20261122-070000-0001%00",
        f"/run/{FRESH}/log/%2e%2e/20261122-070000-0001",
        "/static/../app.py",
        "/static/%2e%2e%2fapp.py",
        "/static/..%2f..%2f..%2fetc%2fpasswd",
        "/static/uPlot.LICENSE/../../app.py",
        "//etc/passwd",
        "/etc/passwd",
        "/api/run/..%2f/x",
        "/api/curves/roses/..",
    ],
)
def test_no_path_leads_out(server: Serving, path: str) -> None:
    answer = server.ask(path)
    assert answer.status == 404, answer.text
    assert b"root:" not in answer.content and b"import" not in answer.content


def test_a_log_is_text(server: Serving) -> None:
    page = server.ask(LOG)
    assert page.status == 200 and page.headers["content-type"] == "text/html; charset=utf-8"
    assert "&lt;script&gt;alert(1)" in page.text and "<script>alert" not in page.text
    text = server.ask(f"{LOG}/text")
    assert text.headers["content-type"] == "text/plain; charset=utf-8"
    assert "<script>alert(1)</script>" in text.text


def test_the_page_of_the_run_links_to_its_logs(server: Serving) -> None:
    assert f'href="{LOG}"' in server.ask(f"/run/{FRESH}").text


def test_the_last_lines_of_a_log_are_on_the_page_and_travel_alone(small_shards: str, tmp_path: Path) -> None:
    run = plant(tmp_path / "roses", small_shards, kind="running")
    log = log_of(run)
    log.write_text("".join(f"step {number}\n" for number in range(100_000)))
    with serving(tmp_path) as server, alive(run):
        first = server.get(f"/api/run/{FRESH}")
        assert re.findall(r"step (\d+)", first["parts"]["tail"]) == [str(number) for number in range(99_980, 100_000)]
        with log.open("a") as stream:
            stream.write("\x1b[31mloss is <b>nan</b>\x1b[0m\n" + "x" * 10_000 + "\n")
        news = wait_for(lambda: server.get(f"/api/run/{FRESH}?known={first['digest']}")["parts"])
        assert list(news) == ["tail"] and len(news["tail"]) < 5_000 and "x" * 1_000 in news["tail"]
        with log.open("a") as stream:
            stream.write("loss is <b>nan</b>\n")
        wait_for(lambda: "loss is &lt;b&gt;nan" in server.get(f"/api/run/{FRESH}")["parts"]["tail"])
        # As in a bucket: the log is where the stage ran, and its events say what was said.
        log.unlink()
        told = [{"time": 1e9 + at, "event": "log", "message": f"epoch {at} <i>"} for at in range(30)]
        with (log.parent / EVENTS_NAME).open("a") as stream:
            stream.writelines(json.dumps(event) + "\n" for event in told)
        wait_for(lambda: "epoch 29 &lt;i&gt;" in server.get(f"/api/run/{FRESH}")["parts"]["tail"])
        tail = server.get(f"/api/run/{FRESH}")["parts"]["tail"]
        assert re.findall(r"epoch (\d+)", tail) == [str(number) for number in range(10, 30)] and "href" not in tail


@pytest.fixture
def own(small_shards: str, tmp_path: Path) -> Planted:
    """A run of the test's own."""
    return plant(tmp_path / "root" / "roses", small_shards)


def log_of(run: Planted) -> Path:
    return run.line / "train" / "attempts" / run.run_id / "log.txt"


def test_a_gigabyte_of_log_is_read_in_pieces(own: Planted, monkeypatch: pytest.MonkeyPatch) -> None:
    log = log_of(own)
    with log.open("w") as stream:
        stream.write("first line\n")
        stream.seek(1 << 30)
        stream.write("\nlast but one\nlast line\n")
    wanted: list[int] = []
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, length, at: wanted.append(length) or pread(fd, length, at))
    with serving(own.line.parent) as server:
        text = server.ask(f"{LOG}/text")
        assert text.text.endswith("last but one\nlast line\n")
        assert len(text.content) <= 3 * WINDOW_BYTES
        assert "first line" in server.ask(f"{LOG}/text?end=2000").text
        assert f"?end={(1 << 30) + 24 - WINDOW_BYTES}" in server.ask(LOG).text
    assert sum(wanted) < 4 * (WINDOW_BYTES + 1)


def test_pieces_are_whole_lines(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("".join(f"line {number}\n" for number in range(1000)))
    root, uri = storage.normalise(tmp_path), storage.normalise(tmp_path / "log")
    pieces = [read_piece(root, uri, most=100)]
    while pieces[0].start:
        pieces.insert(0, read_piece(root, uri, end=pieces[0].start, most=100))
    assert b"".join(piece.content for piece in pieces) == (tmp_path / "log").read_bytes()
    assert all(piece.content.startswith(b"line ") and piece.content.endswith(b"\n") for piece in pieces)


def test_a_log_is_walked_from_its_start_to_its_end(own: Planted) -> None:
    log = log_of(own)
    # Lines of many lengths: one of 20 KB, and one longer than a piece.
    lines = [f"{number} {'x' * (number % 200)}" for number in range(8000)]
    lines[4000:4000] = ["y" * 20_000, "z" * (WINDOW_BYTES + 5)]
    content = "".join(f"{line}\n" for line in lines)
    log.write_text(content)
    with serving(own.line.parent) as server:
        query, walked = "?end=1000", [(0, 1000)]
        for _ in range(100):
            page = server.ask(LOG + query).text
            if 'rel="next"' not in page:
                break
            query = re.findall(r'(\?[a-z]+=\d+)" rel="next"', page)[0]
            text = server.ask(f"{LOG}/text{query}")
            start, end, _ = map(int, re.findall(r"\d+", text.headers["shardline-piece"]))
            assert text.text == content[start:end]
            walked.append((start, end))
    assert [start for start, _ in walked[1:]] == [end for _, end in walked[:-1]]
    assert walked[-1][1] == len(content)
    # At its end where a line ends, but within the one that no piece can hold.
    assert sum(content[end - 1] != "\n" for _, end in walked[1:]) <= 1


@pytest.mark.parametrize("kind", ["link", "folder link", "pipe", "folder", "gone"])
def test_only_ordinary_files_below_the_root(own: Planted, tmp_path: Path, kind: str) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "log.txt").write_text("a secret")
    log = log_of(own)
    with serving(own.line.parent) as server:
        assert server.ask(f"{LOG}/text").status == 200
        log.unlink()
        if kind == "link":
            log.symlink_to(secret / "log.txt")
        elif kind == "folder link":
            log.parent.rename(log.parent.with_name("moved"))
            log.parent.symlink_to(secret)
        elif kind == "pipe":
            os.mkfifo(log)
        elif kind == "folder":
            log.mkdir()
        for path in (LOG, f"{LOG}/text"):
            answer = server.ask(path)
            assert answer.status == 404
            assert b"a secret" not in answer.content


def test_the_profiling_page_is_ours_and_runs_our_script_alone(own: Planted) -> None:
    """What the run left is data: a page of its own is not handed on."""
    folder = storage.local_path(own.uris["profile"])
    content = b"<!DOCTYPE html><script>document.title='ran'</script>"
    (folder / "profile.html").write_bytes(content)
    give_report(folder, [{"name": "profile.html", "bytes": len(content), "crc32c": storage.crc32c(content)}])
    with serving(own.line.parent) as server:
        answer = server.ask(f"/run/{FRESH}/profile")
        assert answer.status == 200 and b"<h1>Profiling run</h1>" in answer.content and content not in answer.content
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'") and policy.endswith("frame-ancestors 'none'")
        assert re.search(r"script-src 'sha256-[^ ;]+';", policy)


def give_report(folder: Path, files: list[dict[str, Any]], **changes: Any) -> None:
    """Name files in the profile report of a folder, and change what else it says."""
    report = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**report, "files": [*report["files"], *files], **changes}))


# --- what is wrong ----------------------------------------------------------------------------------------------------


def test_a_broken_run_is_a_row(own: Planted) -> None:
    for number, content in enumerate((b"{", b"[]", b'{"format_version": 99}', b"\xff\xfe", b"null")):
        folder = own.line / "runs" / f"20261122-07000{number}-0009"
        folder.mkdir()
        (folder / "run-start.json").write_bytes(content)
        (folder / "run.json").write_bytes(content)
    with serving(own.line.parent) as server:
        runs = server.get("/api/runs")["runs"]
        assert len(runs) == 6
        assert all(run["problem"] for run in runs if run["id"].endswith("-0009"))
        for run in runs:
            assert server.ask(run["address"]).status == 200
        assert server.ask("/").text.count("cannot be read") == 5


def test_names_are_text(own: Planted) -> None:
    name = '<img src=x onerror=alert(1)>"\u202e&#'
    own.line.rename(own.line.with_name(name))
    decide(storage.normalise(own.line.with_name(name)), by=name, action="promoted", run=own.run_id, reasons=[name])
    with serving(own.line.parent) as server:
        (run,) = server.get("/api/runs")["runs"]
        history = f"/line/{quote(name, safe='')}"
        assert history in server.ask("/").text
        assert server.get(f"/api{history}")["production"] == own.run_id
        assert "promoted by" in server.ask(history).text and "in production</small>" in server.ask(history).text
        for path in (
            history,
            "/",
            run["address"],
            f"/compare?run={run['address'][5:]}&run={run['address'][5:]}",
            f"{run['address']}x",
        ):
            text = server.ask(path).text
            assert "<img src=x" not in text and "\u202e" not in text
        assert server.ask(run["address"]).status == 200


def test_folders_whose_names_are_no_text_are_left_out(own: Planted) -> None:
    for folder in (own.line.parent / os.fsdecode(b"\xff") / "runs" / "1", own.line / "runs" / os.fsdecode(b"\xfe")):
        folder.mkdir(parents=True)
        (folder / "run-start.json").write_text("{}")
    with serving(own.line.parent) as server:
        assert [run["address"] for run in server.get("/api/runs")["runs"]] == [f"/run/{FRESH}"]


def test_numbers_that_are_none(own: Planted) -> None:
    record = own.folder / "run.json"
    document = json.loads(record.read_text())
    document["results"]["metrics"]["test_accuracy"] = float("nan")
    record.write_text(json.dumps({**document, "wall_s": float("inf")}))
    with serving(own.line.parent) as server:
        (run,) = server.get("/api/runs")["runs"]
        # No stage writes what is no number of JSON: the record is damaged.
        assert (run["headline"]["wall_s"], run["headline"]["metric_value"]) == (None, None)
        assert "no number of JSON" in run["problem"]
        assert server.ask("/api/rows").status == 200


def test_a_curve_of_others_breaks_no_list(own: Planted) -> None:
    record = own.folder / "run.json"
    document = json.loads(record.read_text())

    def row_with(curve: Any) -> tuple[RunLine, str]:
        results = {**document["results"], "curve": curve}
        record.write_text(json.dumps({**document, "results": results}))
        (line,) = RunLister(str(own.line)).read()
        assert not line.problem
        return line, row(RunKey("a", line.id), line)

    line, drawn = row_with({"name": "</svg><script>", "direction": "min", "values": [2, None, 1.5, 1]})
    assert "<title>&lt;/svg&gt;&lt;script&gt;: first 2, last 1, best 1</title>" in drawn and "<script" not in drawn
    (path,) = re.findall('<path d="([^"]*)" class="line', drawn)
    assert re.findall("[ML]", path) == ["M", "L", "M", "L", "L"]
    good = json.loads(line.curve.model_dump_json()) if line.curve is not None else {}
    for wrong in (
        None,
        [1, 2],
        {**good, "values": [1e308, -1e308]},
        {**good, "values": [None, None]},
        {**good, "values": [0.5] * 25},
        {**good, "values": ["x"]},
        {**good, "name": "x" * 5000},
        {**good, "more": 1},
    ):
        line, drawn = row_with(wrong)
        assert line.curve is None and "spark" not in drawn, wrong


@pytest.mark.usefixtures("soon_stale")
def test_a_root_that_goes_away(own: Planted) -> None:
    root = own.line.parent
    with serving(root) as server:
        assert server.ask("/").status == 200
        root.rename(root.with_name("elsewhere"))
        wait_for(lambda: server.get("/api/rows")["problem"])
        assert server.ask("/").status == 200
        assert server.ask("/api/runs").status == 503
        root.with_name("elsewhere").rename(root)
        wait_for(lambda: not server.get("/api/rows")["problem"])


@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
def test_a_root_in_a_bucket(own: Planted, bucket_server: BucketServer) -> None:
    for path in sorted(own.line.rglob("*")):
        if path.is_file():
            storage.replace(f"gs://bucket-1/lines/roses/{path.relative_to(own.line)}", path.read_bytes())
    with serving("gs://bucket-1/lines") as server:
        (run,) = server.get("/api/runs")["runs"]
        assert (run["address"], run["state"]) == (f"/run/{FRESH}", "succeeded")
        assert 'id="overview"' in server.body(f"/api/run/{FRESH}")
        assert server.get(f"/api/curves/{FRESH}")["curves"]
        assert server.ask(f"/run/{FRESH}/log/train/..%2f..").status == 404
    root, log = "gs://bucket-1/lines", "gs://bucket-1/lines/roses/train/attempts/20261122-070000-0001/log.txt"
    assert read_piece(root, log, most=10).content == b"</script>\n"
    storage.replace("gs://bucket-1/lines-2/log.txt", b"beside the root")
    for other in ("gs://bucket-1/lines-2/log.txt", f"{log}.gone", "file:///etc/passwd", "gs://bucket-2/lines/log.txt"):
        with pytest.raises(NotFoundError):
            read_piece(root, other)


# --- the command ------------------------------------------------------------------------------------------------------


def start(root: Path | str, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "pipelines.cli", "ui", str(root), *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_ctrl_c_ends_it(root: Path) -> None:
    process = start(root, "--port", "0")
    try:
        assert process.stdout is not None
        port = int(process.stdout.readline().strip().rstrip("/").rpartition(":")[2])
        assert Serving(port, RunStore(str(root))).ask("/").status == 200
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
        assert (process.returncode, out, err) == (130, "", "")
    finally:
        process.kill()
        process.communicate()


def test_ctrl_c_does_not_wait_for_what_is_read(root: Path) -> None:
    code = f"""
import threading
from inspection.ui import server, store

def read_for_ever(self):
    print("reads", flush=True)
    threading.Event().wait()

store.RunStore._list = read_for_ever
server.serve({str(root)!r}, host="127.0.0.1", port=0, say=lambda url: print(url, flush=True), warn=print)
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        port = int(process.stdout.readline().strip().rstrip("/").rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert process.stdout.readline() == "reads\n"
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=120)
        assert process.returncode == 130
    finally:
        process.kill()
        process.communicate()


def test_a_port_in_use(root: Path) -> None:
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"--port {port}.*(in use|cannot listen)"):
            serve(str(root), host="127.0.0.1", port=port, say=print, warn=print)


@pytest.mark.parametrize("host", ["192.0.2.1", "no such host", ""])
def test_an_address_that_is_none_of_this_machine(root: Path, host: str) -> None:
    with pytest.raises(ConfigError, match="cannot listen"):
        serve(str(root), host=host, port=0, say=print, warn=print)


def test_a_root_that_is_not_there(tmp_path: Path) -> None:
    done = start(tmp_path / "nothing", "--port", "0")
    _, err = done.communicate(timeout=120)
    assert done.returncode == 2
    assert "is not there" in err and "Traceback" not in err


def test_without_its_extra_it_says_what_to_install(root: Path, tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['uvicorn'] = None; "
        "from pipelines.cli import main; sys.argv = ['shardline', 'ui', sys.argv[1]]; main()"
    )
    done = subprocess.run([sys.executable, "-c", code, str(root)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 2, done.stderr
    assert 'pip install "shardline[ui]"' in done.stderr


def test_beyond_this_machine_it_warns(root: Path) -> None:
    process = start(root, "--port", "0", "--host", "0.0.0.0")
    try:
        assert process.stderr is not None
        assert "there is no login" in process.stderr.readline()
    finally:
        process.kill()
        process.communicate()


def test_it_imports_nothing_heavy() -> None:
    heavy = ["torch", "apache_beam", "kfp", "google.cloud.aiplatform"]
    code = f"import inspection.ui.server, sys; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "[]"
