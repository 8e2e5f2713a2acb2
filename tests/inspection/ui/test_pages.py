"""The pages of `shardline ui` in Chromium: lists, comparisons, charts; quiet, by keyboard, on a phone."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from tests.browser import NEEDS_CHROMIUM, TIMEOUT_MS, Opened, opened, started_chromium
from tests.inspection.lines import Planted, plant
from tests.inspection.ui.serving import Serving, serving

pytestmark = NEEDS_CHROMIUM
expect.set_options(timeout=TIMEOUT_MS)

FRESH = "roses/20261122-070000-0001"
RESUMED = "tulips/20261122-070000-0002"
FAILED = "roses/20261122-060000-0003"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with started_chromium() as found:
        yield found


def order(page: Page) -> list[str]:
    return page.eval_on_selector_all("#rows tr:not([hidden])", "rows => rows.map(row => row.dataset.run)")


def sort_by(page: Page, title: str) -> None:
    page.locator("#runs thead button", has_text=title).click()


def check_quiet(shown: Opened, server: Serving) -> None:
    assert shown.complaints == []
    assert [address for address in shown.requests if not address.startswith(f"{server.url}/")] == []


COMPARED = f"/compare?run={FRESH}&run={RESUMED}&run={FAILED}"


@pytest.mark.parametrize("path", ["/", f"/run/{FRESH}", f"/run/{FAILED}", COMPARED])
def test_pages_are_quiet_and_fit(browser: Browser, server: Serving, path: str) -> None:
    with opened(browser, server.url + path) as shown:
        shown.page.wait_for_load_state("networkidle")
        for width in (1280, 360):
            shown.page.set_viewport_size({"width": width, "height": 800})
            assert shown.page.evaluate("document.documentElement.scrollWidth") <= width
        check_quiet(shown, server)


@pytest.mark.parametrize(
    "path", ["/", f"/run/{FRESH}", COMPARED, f"/run/{FRESH}/log/train/20261122-070000-0001", "/line/roses"]
)
def test_axe_finds_nothing(browser: Browser, server: Serving, path: str) -> None:
    with opened(browser, server.url + path) as shown:
        shown.page.wait_for_load_state("networkidle")
        for dark, width in ((False, 1280), (True, 360)):
            shown.page.emulate_media(color_scheme="dark" if dark else "light")
            shown.page.set_viewport_size({"width": width, "height": 800})
            found = Axe().run(shown.page)
            assert found.response["violations"] == [], (dark, found.generate_report())


def test_an_error_stays_in_its_cell(browser: Browser, server: Serving) -> None:
    with opened(browser, server.url) as shown:
        said = shown.page.locator(f'tr[data-run="{FAILED}"] .because')
        assert "cannot <b>work</b>" in said.inner_text()
        said.evaluate("(box, text) => (box.textContent = text)", "very long words " * 20)
        assert said.evaluate("box => box.scrollWidth <= box.clientWidth")


def test_every_section_is_there(browser: Browser, server: Serving) -> None:
    from inspection.page import SECTIONS

    with opened(browser, f"{server.url}/run/{FRESH}") as shown:
        for name, _ in SECTIONS:
            expect(shown.page.locator(f"section#{name}")).to_be_visible()


def test_the_list_sorts(browser: Browser, server: Serving) -> None:
    with opened(browser, server.url) as shown:
        page = shown.page
        assert len(order(page)) == 3
        sort_by(page, "Run")
        assert order(page) == [FAILED, FRESH, RESUMED]
        sort_by(page, "Run")
        assert order(page) == [RESUMED, FRESH, FAILED]
        assert page.locator("#runs th[aria-sort=descending]").inner_text().startswith("Run")
        # A number; what has none comes last whichever way.
        sort_by(page, "Preemptions")
        assert order(page)[0] == RESUMED
        sort_by(page, "Test result")
        assert order(page)[-1] == FAILED
        sort_by(page, "Test result")
        assert order(page)[-1] == FAILED
        sort_by(page, "State")
        assert order(page)[0] == FAILED


def test_the_list_filters(browser: Browser, server: Serving) -> None:
    with opened(browser, server.url) as shown:
        page = shown.page
        page.locator("#filter").fill("ROSES succ")
        assert order(page) == [FRESH]
        expect(page.locator("#count")).to_have_text("1 of 3 runs")
        page.locator("#filter").fill("nothing like it")
        assert order(page) == []
        page.locator("#filter").fill("")
        assert len(order(page)) == 3
        for text, found in (
            ("accuracy > 93 %", {FRESH, RESUMED}),
            ("test_accuracy>0.9375", set()),
            ("learning_rate >= 0.02", {RESUMED}),
            ("roses learning_rate != 0.02", {FRESH, FAILED}),
            ("state = failed duration < 2 h", {FAILED}),
            ("preemptions > 0", {RESUMED}),
            ("state = failed duration < 120m", {FAILED}),
            ("export = unproven", {FRESH, RESUMED}),
            ("export = proven", set()),
            ("export != unproven export = fp16", set()),
            ("optimizer = AdamW", {FRESH, RESUMED, FAILED}),
            ("team=vision", {FAILED}),
        ):
            page.locator("#filter").fill(text)
            assert set(order(page)) == found, text
        page.locator("#filter").fill("acuracy > 0.5")
        expect(page.locator("#count")).to_have_text("0 of 3 runs; no run has acuracy")


def test_columns_are_chosen_and_kept(browser: Browser, server: Serving) -> None:
    with opened(browser, server.url) as shown:
        page = shown.page
        page.locator("#columns summary").press("Enter")
        page.get_by_label("learning rate").check()
        page.get_by_label("test loss").check()
        expect(page.locator(f'tr[data-run="{RESUMED}"] .spark')).to_be_visible()
        page.get_by_label("curve").uncheck()
        sort_by(page, "learning rate")
        assert order(page)[0] == RESUMED
        page.locator("#filter").fill("tulips")
        # The browser hears of an address that a script has changed a moment later.
        page.wait_for_url("**filter=tulips**")
        page.reload()
        for address in (page.url, server.url):
            page.goto(address)
            assert page.locator(f'tr[data-run="{RESUMED}"] .extra').all_inner_texts() == ["0.02", "0.25"]
            assert page.locator("#runs th.extra").all_inner_texts() == ["learning rate", "test loss"]
            assert len(order(page)) == (1 if address != server.url else 3)
            assert [page.locator(each).first.is_visible() for each in ("[data-column=curve]", ".spark")] == [False] * 2
        time = page.locator("#rows time").first
        assert "ago" in time.inner_text() or time.inner_text() == "just now"
        assert str(time.get_attribute("title")).endswith("\xa0UTC")
        page.locator("#columns summary").click()
        page.set_viewport_size({"width": 360, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        assert Axe().run(page).response["violations"] == []
        check_quiet(shown, server)


def test_runs_are_picked_and_compared(browser: Browser, server: Serving) -> None:
    with opened(browser, server.url) as shown:
        page = shown.page
        button = page.locator("#compare")
        for key in (FRESH, RESUMED, FAILED):
            expect(button).to_be_disabled() if key != FAILED else expect(button).to_have_text("Compare 2")
            page.locator(f'tr[data-run="{key}"] input').check()
        expect(button).to_have_text("Compare 3")
        button.click()
        page.wait_for_url("**/compare?**")

        def texts(table: str) -> dict[str, list[str]]:
            rows = page.locator(f"#{table}-table tbody tr").all()
            return {row.locator("th").inner_text(): row.locator("td").all_inner_texts() for row in rows}

        configuration, results, data = (texts(name) for name in ("configuration", "results", "data"))
        assert configuration["train.learning_rate"] == ["0.01", "0.02", "0.01"]
        assert not any(name.startswith("model.") for name in configuration)
        assert "93.75\xa0%" in results["Test result"][0] and "the same" in results["Test result"][1]
        assert results["validation accuracy"][0] == "95.00\xa0%" and "worse" in results["Preemptions"][1]
        assert data["train samples"][0].isdigit() and "the same" in data["train samples"][1]
        assert "same" in texts("lineage")["shards"][0]
        page.wait_for_selector("#curves .uplot canvas")
        names = page.locator("#curves .u-series th").all_inner_texts()
        assert sum("validation/accuracy" in name for name in names) == 3
        check_quiet(shown, server)


def test_a_chart_is_drawn_and_reached_by_keyboard(browser: Browser, server: Serving) -> None:
    with opened(browser, f"{server.url}/run/{RESUMED}") as shown:
        page = shown.page
        page.wait_for_selector("#curves .uplot canvas")
        drawn = (
            "document.querySelector('#curves canvas').getContext('2d')"
            ".getImageData(0, 0, 400, 200).data.some(value => value > 0)"
        )
        assert page.evaluate(drawn)
        canvas = page.locator("#curves [data-chart=Loss] .canvas")
        canvas.focus()
        canvas.press("ArrowRight")
        values = page.locator("#curves [data-chart=Loss] .u-value")
        expect(values.nth(1)).to_have_text("0.1")
        canvas.press("ArrowRight")
        expect(values.nth(1)).to_have_text("0.05")
        assert values.all_inner_texts() == ["40", "0.05"]
        assert "preemption (1)" in page.locator(".live-charts .events").inner_text()
        check_quiet(shown, server)


def test_all_is_reached_by_keyboard(browser: Browser, server: Serving) -> None:
    with opened(browser, server.url) as shown:
        page = shown.page
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        seen = set()
        for _ in range(60):
            page.keyboard.press("Tab")
            seen.add(page.evaluate("document.activeElement.id || document.activeElement.tagName"))
        assert {"filter", "A", "BUTTON", "INPUT"} <= seen


def test_without_script_runs_are_listed_and_shown(browser: Browser, server: Serving) -> None:
    context = browser.new_context(java_script_enabled=False)
    try:
        page = context.new_page()
        page.goto(server.url)
        assert page.locator("#rows tr").count() == 3
        expect(page.locator("#controls")).to_be_hidden()
        expect(page.locator(f'tr[data-run="{FRESH}"] .spark')).to_be_visible()
        page.locator(f'tr[data-run="{FRESH}"] a:not(.tag)').click()
        expect(page.locator("#curves svg").first).to_be_visible()
    finally:
        context.close()


def test_hostile_names_run_nothing(browser: Browser, small_shards: str, tmp_path: Path) -> None:
    name = "<img src=x onerror=document.title=1><script>document.title=2<'script>\"'"
    run = plant(tmp_path / "root" / "roses", small_shards)
    start = json.loads((run.folder / "run-start.json").read_text())
    start["config"]["run"]["name"] = start["config"]["sharding"]["source"] = "</main><script>document.title=3</script>"
    (run.folder / "run-start.json").write_text(json.dumps(start))
    run.line.rename(run.line.with_name(name))
    with serving(tmp_path / "root") as server, opened(browser, server.url) as shown:
        page = shown.page
        expect(page.locator("#rows th a:not(.tag)")).to_contain_text("<img src=x")
        page.locator("#rows th a:not(.tag)").click()
        page.wait_for_selector("#overview")
        page.wait_for_load_state("networkidle")
        assert page.title() not in ("1", "2", "3")
        assert page.locator("img[onerror]").count() == 0
        log = page.locator('a[href*="/log/train/"]').first.get_attribute("href")
        page.goto(server.url + str(log))
        expect(page.locator("#log")).to_contain_text("<script>alert(1)</script>")
        check_quiet(shown, server)


def test_the_profiling_page_runs_no_script_of_the_run(browser: Browser, small_shards: str, tmp_path: Path) -> None:
    from contracts.artifacts.trace import SUMMARY_NAME, summaries_to_json
    from tests.inspection.ui.test_server import give_report
    from tests.trainer.profiling.reports import gpu_summary

    folder = storage_path(plant(tmp_path / "roses", small_shards))
    content = summaries_to_json([gpu_summary()])
    (folder / SUMMARY_NAME).write_bytes(content)
    entry = {"name": SUMMARY_NAME, "bytes": len(content), "crc32c": "00000000"}
    give_report(folder, [entry], warnings=["<script>document.title='ran'</script>"])
    with serving(tmp_path) as server, opened(browser, f"{server.url}/run/{FRESH}/profile") as shown:
        expect(shown.page.locator("#warnings")).to_have_text("<script>document.title='ran'</script>")
        assert shown.page.title() == "Profiling run"
        # Its own script runs: a click on a box says what it is.
        shown.page.get_by_title("shardline: loader").click()
        expect(shown.page.locator(".readout").first).to_contain_text("shardline: loader (loader)")
        check_quiet(shown, server)


def storage_path(run: Planted) -> Path:
    from contracts import storage

    return storage.local_path(run.uris["profile"])


def test_a_thousand_runs_are_shown(browser: Browser, small_shards: str, tmp_path: Path) -> None:
    planted = plant(tmp_path / "roses", small_shards)
    content = {name: (planted.folder / name).read_text() for name in ("run-start.json", "run.json")}
    for number in range(1, 1000):
        folder = tmp_path / "roses" / "runs" / f"20261122-070000-{number + 1:04d}"
        folder.mkdir()
        for name, text in content.items():
            (folder / name).write_text(text.replace(planted.run_id, folder.name))
    with serving(tmp_path) as server, opened(browser, server.url) as shown:
        page = shown.page
        assert page.locator("#rows tr").count() == 1000
        sort_by(page, "Run")
        assert order(page)[0] == FRESH
        page.locator("#filter").fill("-0777")
        assert order(page) == ["roses/20261122-070000-0777"]
        check_quiet(shown, server)
