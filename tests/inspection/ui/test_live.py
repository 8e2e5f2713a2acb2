"""A run is watched from start to end in Chromium: what is shown changes, and nothing is loaded again."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Request
from playwright.sync_api import Error as PlaywrightError

from tests.browser import NEEDS_CHROMIUM, Opened, opened, started_chromium
from tests.inspection.lines import plant
from tests.inspection.ui.player import PHASES
from tests.inspection.ui.serving import IMPATIENT, serving

pytestmark = [NEEDS_CHROMIUM, pytest.mark.usefixtures("soon_stale")]

ROOT = Path(__file__).parents[3]
RUN = "20261122-070000-0001"
KEY = f"roses/{RUN}"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with started_chromium() as found:
        yield found


class Played:
    """The process of a run that is played."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process

    def go_on(self) -> str:
        """Let the next phase happen; return its name when it has."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()


@contextmanager
def playing(staged: Path, line: Path) -> Iterator[Played]:
    command = [sys.executable, "-m", "tests.inspection.ui.player", str(staged), str(line), RUN]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield Played(process)
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def staged(small_shards: str, tmp_path: Path) -> Path:
    """A finished run, elsewhere."""
    return plant(tmp_path / "elsewhere" / "roses", small_shards, run_id=RUN, now=time.time() - 60).line


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The root that is served: empty."""
    folder = tmp_path / "root"
    folder.mkdir()
    return folder


def watching(browser: Browser, address: str) -> AbstractContextManager[Opened]:
    """Open a page that asks for news five times a second, not every two seconds."""
    return opened(browser, address, script=IMPATIENT)


def mark(page: Page) -> None:
    """Leave a variable that a reload would take away."""
    page.evaluate("window.stillHere = true")


def check_same(page: Page) -> None:
    assert page.evaluate("window.stillHere") is True


def stage(page: Page, name: str, state: str) -> None:
    """Wait until a stage of the table has a state."""
    page.wait_for_selector(f'[data-stage="{name}"][data-state="{state}"]', state="attached")


def test_a_run_from_start_to_end(browser: Browser, root: Path, staged: Path) -> None:
    with serving(root) as server, playing(staged, root / "roses") as run, watching(browser, server.url) as listed:
        mark(listed.page)
        assert listed.page.locator("#empty").is_visible()
        assert run.go_on() == "sharding"
        row = listed.page.locator(f'tr[data-run="{KEY}"]')
        row.wait_for()
        assert row.get_attribute("data-state") == "running"
        assert listed.page.locator("#empty").is_hidden()
        with watching(browser, f"{server.url}/run/{KEY}") as watched:
            page = watched.page
            mark(page)
            stage(page, "shard", "running")
            assert page.locator('[data-stage="train"]').first.get_attribute("data-state") == "waiting"
            assert run.go_on() == "training"
            stage(page, "shard", "done")
            stage(page, "train", "running")
            assert page.locator(".live-charts").count() == 0
            # The reader opens something, scrolls, and stands on something with the keyboard.
            attempts = page.locator("#overview details#attempts-all")
            assert not attempts.evaluate("details => details.open")
            attempts.locator("summary").click()
            assert page.evaluate("document.activeElement.tagName") == "SUMMARY"
            page.evaluate("document.getElementById('results').scrollIntoView()")
            top = page.evaluate("document.getElementById('results').getBoundingClientRect().top")
            assert 0 <= top <= 60
            assert run.go_on() == "trained"
            stage(page, "train", "done")
            page.wait_for_selector("#curves .uplot canvas")
            assert attempts.evaluate("details => details.open")
            assert page.evaluate("document.activeElement.parentElement.id") == "attempts-all"
            moved = page.evaluate("document.getElementById('results').getBoundingClientRect().top") - top
            assert abs(moved) <= 2, "the section that is read has moved on the screen"
            assert run.go_on() == "ended"
            stage(page, "export", "done")
            page.wait_for_selector("header .chip[data-state=succeeded]")
            # No more questions once it has ended.
            page.wait_for_function("'ended' in document.getElementById('content').dataset")
            asked = len(watched.requests)
            page.wait_for_timeout(500)
            assert len(watched.requests) == asked
            check_same(page)
            assert watched.complaints == []
            assert all(address.startswith(server.url) for address in watched.requests)
            assert watched.requests.count(f"{server.url}/run/{KEY}") == 1
        listed.page.wait_for_selector(f'tr[data-run="{KEY}"][data-state=succeeded]')
        assert "93.75 % accuracy" in row.inner_text().replace("\u00a0", " ")
        check_same(listed.page)
        assert listed.complaints == []


def test_pages_of_a_running_run_cost_little(browser: Browser, root: Path, staged: Path) -> None:
    addresses = (f"/run/{KEY}", "/", f"/compare?run={KEY}&run={KEY}")
    with serving(root) as server, playing(staged, root / "roses") as run, ExitStack() as stack:
        assert [run.go_on(), run.go_on()] == list(PHASES[:2])
        watched = [stack.enter_context(watching(browser, server.url + address)).page for address in addresses]
        clocks = [page.locator('[data-figure="overview.duration"], [data-clock]').first for page in watched]
        asked: list[list[Request]] = [[] for _ in watched]
        before = [clock.inner_text() for clock in clocks]
        for page, found in zip(watched, asked, strict=True):
            page.on("requestfinished", lambda request, found=found: found.append(request))
        # Timers run ten times as fast: a fifth of a minute, the first one, in which a page asks most often.
        watched[-1].wait_for_timeout(1200)
        for address, found in zip(addresses, asked, strict=True):
            sizes = [dict(request.sizes()) for request in found]
            assert 0 < 5 * sum(sum(each.values()) for each in sizes) < 20_000, (address, sizes)
        assert all(clock.inner_text() != then for clock, then in zip(clocks, before, strict=True)), before


def test_a_run_that_is_killed(browser: Browser, root: Path, staged: Path) -> None:
    with serving(root) as server, playing(staged, root / "roses") as run:
        assert [run.go_on(), run.go_on()] == list(PHASES[:2])
        with watching(browser, f"{server.url}/run/{KEY}") as watched:
            mark(watched.page)
            stage(watched.page, "train", "running")
            run.process.kill()
            watched.page.wait_for_selector("header .chip[data-state=stopped]")
            stage(watched.page, "train", "stopped")
            check_same(watched.page)


def test_what_is_selected_stays(browser: Browser, root: Path, staged: Path) -> None:
    with serving(root) as server, playing(staged, root / "roses") as run:
        run.go_on()
        with watching(browser, f"{server.url}/run/{KEY}") as watched:
            page = watched.page
            stage(page, "shard", "running")
            page.evaluate("getSelection().selectAllChildren(document.querySelector('#overview h2'))")
            run.go_on()
            # Others are renewed meanwhile.
            page.wait_for_selector("#data [data-figure]")
            assert page.locator('[data-stage="shard"]').first.get_attribute("data-state") == "running"
            page.evaluate("getSelection().removeAllRanges()")
            stage(page, "shard", "done")


def test_a_server_that_goes_away_and_comes_back(browser: Browser, root: Path, staged: Path) -> None:
    with playing(staged, root / "roses") as run:
        run.go_on()
        with serving(root) as server, watching(browser, f"{server.url}/run/{KEY}") as watched:
            notice = watched.page.locator("#notice")
            stage(watched.page, "shard", "running")
            assert notice.is_hidden()
            with watching(browser, server.url) as listed:
                listed.page.wait_for_selector(f'tr[data-run="{KEY}"]')
                server.stop.set()
                for shown in (watched, listed):
                    shown.page.wait_for_selector("#notice:not([hidden])")
                    assert "Connection lost" in shown.page.locator("#notice").inner_text()
                    # What was known last is still there.
                    assert "roses" in shown.page.content()


@pytest.mark.slow
def test_a_real_run(browser: Browser, pictures: Path, root: Path) -> None:
    sections = [
        f"sharding.source={pictures}", "sharding.splits={train: 0.6, validation: 0.2, test: 0.2}",
        "sharding.target_shard_bytes=8192", "data.image_size=16", "data.num_workers=0", "model.architecture=resnet",
        "model.arguments={layer_type: basic, embedding_size: 8, hidden_sizes: [8, 16], depths: [1, 1]}",
        "train.global_batch_size=16", "train.epochs=2", "train.learning_rate=0.01", "parallel.slot_size=4",
        "resources.ranks=1", "profile.window_s=0.3", f"run.root={root}", "run.name=real",
    ]  # fmt: skip
    config = root.parent / "config.yaml"
    config.write_text("{}\n")
    command = [sys.executable, "-m", "pipelines.cli", "run", str(config), *sections]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = None
    with serving(root) as server, watching(browser, server.url) as listed:
        mark(listed.page)
        log = root.parent / "run.log"
        with log.open("w") as stream:
            process = subprocess.Popen(command, stdout=stream, stderr=stream, cwd=root.parent, env=environment)
        try:
            row = listed.page.locator("#rows tr").first
            try:
                row.wait_for()
            except PlaywrightError:
                raise AssertionError(f"no run appeared: {log.read_text()}") from None
            key = row.get_attribute("data-run")
            with opened(browser, f"{server.url}/run/{key}") as watched:
                mark(watched.page)
                for name in ("shard", "profile", "train", "export"):
                    wait_s = 280_000
                    watched.page.wait_for_selector(
                        f'[data-stage="{name}"][data-state="done"]', state="attached", timeout=wait_s
                    )
                assert process.wait(280) == 0, log.read_text()
                watched.page.wait_for_selector("header .chip[data-state=succeeded]")
                watched.page.wait_for_selector("#curves .uplot canvas")
                check_same(watched.page)
                assert watched.complaints == []
            listed.page.wait_for_selector(f'tr[data-run="{key}"][data-state=succeeded]')
            check_same(listed.page)
        finally:
            process.kill()
            process.wait()
