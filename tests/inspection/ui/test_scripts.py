"""What the scripts of the pages do when the server is slow, refuses, or answers what they do not expect."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from tests.browser import NEEDS_CHROMIUM, TIMEOUT_MS, started_chromium
from tests.inspection.lines import plant
from tests.inspection.ui.serving import Serving, serving

pytestmark = NEEDS_CHROMIUM
expect.set_options(timeout=TIMEOUT_MS)

FRESH = "roses/20261122-070000-0001"
RESUMED = "tulips/20261122-070000-0002"
ROWS = re.compile(r"/api/rows\?")
RUN = re.compile(r"/api/run/")
CURVES = re.compile(r"/api/curves/")
# What takes half a minute or a minute takes about a second.
FASTER = """
const [timer, timeout] = [globalThis.setTimeout, AbortSignal.timeout.bind(AbortSignal)];
globalThis.setTimeout = (act, ms, ...rest) => timer(act, ms / 100, ...rest);
AbortSignal.timeout = (ms) => timeout(ms / 30);
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with started_chromium() as found:
        yield found


@contextmanager
def window(browser: Browser, *, faster: bool = False) -> Iterator[Page]:
    """A window whose addresses can be taken over before it opens one."""
    context = browser.new_context()
    context.set_default_timeout(TIMEOUT_MS)
    if faster:
        context.add_init_script(FASTER)
    try:
        yield context.new_page()
    finally:
        context.close()


def notice(page: Page) -> Any:
    return expect(page.locator("#notice"))


def test_a_server_that_hangs(browser: Browser, server: Serving) -> None:
    for address, path in ((ROWS, "/"), (RUN, f"/run/{FRESH}")):
        with window(browser, faster=True) as page:
            # Never answered.
            page.route(address, lambda route: None)
            page.goto(server.url + path)
            notice(page).to_contain_text("does not answer")
            page.unroute(address)
            notice(page).to_be_hidden()


def refuse(route: Route) -> None:
    route.fulfill(status=404, json={"problem": "the run <b>roses</b> is there no more"})


def test_what_the_server_refuses_is_said(browser: Browser, server: Serving) -> None:
    for address, path in ((ROWS, "/"), (RUN, f"/run/{FRESH}")):
        with window(browser, faster=True) as page:
            page.route(address, refuse)
            page.goto(server.url + path)
            notice(page).to_contain_text("The server says: the run <b>roses</b> is there no more")


def test_a_fault_of_ours_is_no_lost_connection(browser: Browser, server: Serving) -> None:
    with window(browser, faster=True) as page:
        faults: list[str] = []
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.route(ROWS, lambda route: route.fulfill(json={"version": "a.1", "order": 5, "rows": {}, "problem": ""}))
        page.goto(server.url)
        notice(page).to_contain_text("load it again")
        assert faults


def test_an_ended_run_is_looked_at_now_and_then(browser: Browser, server: Serving) -> None:
    with window(browser, faster=True) as page:
        page.goto(f"{server.url}/run/{FRESH}")
        assert page.evaluate("'ended' in document.getElementById('content').dataset")
        results = server.get(f"/api/run/{FRESH}")["parts"]["results"]
        parts = {"results": results.replace('id="results"', 'id="results" data-verified="1"')}
        page.route(RUN, lambda route: route.fulfill(json=news("f", parts, ended=True)))
        page.wait_for_selector("#results[data-verified]")


def test_curves_that_cannot_be_loaded_are_asked_for_again(browser: Browser, server: Serving) -> None:
    with window(browser, faster=True) as page:
        refused: list[str] = []

        def fail(route: Route) -> None:
            refused.append(route.request.url)
            route.fulfill(status=503, json={"problem": "the bucket says nothing"})

        page.route(CURVES, fail)
        page.goto(f"{server.url}/run/{FRESH}")
        expect(page.locator("#curves-problem")).to_contain_text("the bucket says nothing")
        assert page.locator(".live-charts").count() == 0
        page.unroute(CURVES)
        page.wait_for_selector("#curves .uplot canvas")
        expect(page.locator("#curves-problem")).to_have_count(0)


def test_of_two_loads_the_newest_counts(browser: Browser, server: Serving) -> None:
    curves = server.get(f"/api/curves/{FRESH}")
    held: list[Route] = []

    def of_value(value: float) -> dict[str, Any]:
        changed = [{**curve, "values": [value] * len(curve["values"])} for curve in curves["curves"]]
        return {**curves, "curves": changed}

    with window(browser) as page:
        page.route(CURVES, lambda route: held.append(route))
        with page.expect_request(CURVES):
            page.goto(f"{server.url}/run/{FRESH}")
        with page.expect_request(CURVES):
            page.evaluate("document.dispatchEvent(new CustomEvent('shardline:changed'))")
        page.wait_for_function("true")
        assert len(held) == 2
        held[1].fulfill(json=of_value(7))
        page.wait_for_selector("#curves .uplot canvas")
        with page.expect_response(CURVES):
            held[0].fulfill(json=of_value(9))
        page.wait_for_timeout(500)
        page.locator("#curves .canvas").first.press("Home")
        expect(page.locator("#curves .u-value").nth(1)).to_have_text("7")


def news(digest: str, parts: dict[str, str], *, ended: bool = False) -> dict[str, Any]:
    return {"digest": digest, "ended": ended, "clocks": {}, "parts": parts}


def test_a_section_that_the_page_lacks_loads_it_again(browser: Browser, server: Serving) -> None:
    with window(browser, faster=True) as page:
        page.goto(f"{server.url}/run/{FRESH}")
        with page.expect_event("load"):
            summary = {"summary": '<section id="summary"></section>'}
            page.route(RUN, lambda route: route.fulfill(json=news("1", summary)))
        page.unroute(RUN)
        page.wait_for_selector("#overview")


def test_names_that_need_quotes_are_compared_by_the_button(browser: Browser, small_shards: str, tmp_path: Path) -> None:
    plant(tmp_path / "roses", small_shards)
    plant(tmp_path / "roses", small_shards, kind="failed", run_id="20261122-070000-0002")
    name = "50 % größer+&?#"
    (tmp_path / "roses").rename(tmp_path / name)
    with serving(tmp_path) as own, window(browser) as page:
        page.goto(own.url)
        for box in page.locator("#rows input").all():
            box.check()
        page.locator("#compare").click()
        page.wait_for_selector("#results-table")
        links = page.locator("header a").evaluate_all("links => links.map(link => link.textContent)")
        assert [text.rpartition(" ")[0] for text in links] == [name, name]
