"""The page in a real browser: offline, without a complaint, by mouse and by keyboard."""

from pathlib import Path

import pytest

from audits import EVIL, N, audit, evil_audit
from remnant.report.page import PAGE_FILE, write_page
from remnant.report.page.files import read_bundle, write_bundle
from remnant.store import open_run

CHROMIUM = Path("/usr/bin/chromium")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = pytest.mark.skipif(not CHROMIUM.exists(), reason=f"there is no {CHROMIUM}")


@pytest.fixture(scope="module")
def browser():
    with api.sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=str(CHROMIUM), args=FLAGS)
        yield made
        made.close()


@pytest.fixture(scope="module")
def bundles(tmp_path_factory):
    """Where each kind of audit has its page."""
    places = {}
    kinds = {"faces": audit(), "table": audit("breast_cancer"), "evil": evil_audit()}
    for name, parts in kinds.items():
        run = open_run(tmp_path_factory.mktemp(name) / "run", {})
        write_bundle(run, *parts)
        write_page(run.path, *read_bundle(run.path))
        places[name] = run.path / PAGE_FILE
    return places


@pytest.fixture
def visit(browser, bundles):
    """Open a page with the network off; at the end nothing may have been said or asked for."""
    contexts, faults = [], []

    def go(name, width=1280, **options):
        size = {"width": width, "height": 800}
        context = browser.new_context(viewport=size, offline=True, **options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(30_000)
        page.on("console", lambda message: faults.append(message.text))
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("dialog", lambda dialog: (faults.append(dialog.message), dialog.dismiss()))
        page.on("request", lambda asked: _outside(asked.url) and faults.append(asked.url))
        page.goto(bundles[name].as_uri())
        return page

    yield go
    for context in contexts:
        context.close()
    assert faults == []


def _outside(url):
    return not url.startswith(("file:", "data:"))


def on_screen(page):
    return page.locator(".card:visible").count()


def test_filters_narrow_by_mouse(visit):
    page = visit("faces")
    assert on_screen(page) == 10
    page.get_by_role("button", name=f"Show all {2 * N}").click()
    assert on_screen(page) == 2 * N
    page.get_by_label("Outcome").select_option("recovered")
    assert on_screen(page) == N
    assert page.locator("#shown").inner_text() == f"{N} of {2 * N} match."
    page.get_by_label("Adversary").select_option("The released weights alone")
    assert on_screen(page) == 0
    page.get_by_label("Outcome").select_option("not recovered")
    assert on_screen(page) == N
    label = page.locator(".card:visible").first.get_attribute("data-label")
    page.get_by_label("Class").select_option(label)
    kept = page.locator(".card:visible").evaluate_all("c => c.map(e => e.dataset.label)")
    assert set(kept) == {label}


def test_filters_narrow_by_keyboard(visit):
    page = visit("faces")
    page.get_by_label("Outcome").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    assert page.locator("#shown").inner_text() == f"{N} of {2 * N} match."
    assert page.locator(".card:visible").first.get_attribute("data-recovered") == "no"


def covered(page):
    """The share of the original that the viewer shows."""
    return page.locator(".wipe").evaluate("e => getComputedStyle(e).getPropertyValue('--cut')")


def test_the_slider_works_by_keyboard(visit):
    page = visit("faces")
    pair = page.locator("button.pair").nth(1)
    pair.focus()
    page.keyboard.press("Enter")
    viewer = page.get_by_role("dialog")
    assert viewer.is_visible()
    assert page.evaluate("document.activeElement.id") == "cut"
    assert covered(page) == "50%"
    page.keyboard.press("End")
    assert covered(page) == "100%"
    page.keyboard.press("ArrowLeft")
    assert covered(page) == "99%"
    title = page.locator("#viewer-title").inner_text()
    assert title == page.locator(".card").nth(1).locator("code").inner_text()
    assert "correlation" in page.locator("#viewer-scores").inner_text()
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")  # next
    assert page.locator("#viewer-title").inner_text() != title
    page.keyboard.press("Escape")
    assert not viewer.is_visible()
    # Browsers send the dialog's `close`, on which the focus returns, a little after it is gone.
    api.expect(page.locator(".card").nth(2).locator("button.pair")).to_be_focused()


def test_the_slider_works_by_mouse(visit):
    page = visit("faces")
    page.locator("button.pair").first.click()
    box = page.locator(".wipe").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 20)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 4, box["y"] + 20)
    page.mouse.up()
    assert covered(page) == "25%"
    shown = page.locator("#above, #below").evaluate_all("i => i.map(e => e.naturalWidth)")
    assert shown == [25, 25]
    page.get_by_role("button", name="Close").click()
    assert not page.get_by_role("dialog").is_visible()


@pytest.mark.parametrize(
    ("name", "scheme"), [("faces", "light"), ("table", "dark"), ("evil", "light")]
)
def test_a_phone_never_scrolls_sideways(visit, name, scheme):
    page = visit(name, width=400, color_scheme=scheme)
    page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    paper, ink = page.evaluate(
        "(s => [s.backgroundColor, s.color])(getComputedStyle(document.body))"
    )
    dark = sum(map(int, paper[4:-1].split(","))) < sum(map(int, ink[4:-1].split(",")))
    assert dark == (scheme == "dark")


def test_evil_names_stay_text(visit):
    page = visit("evil")
    assert page.locator("h1").inner_text() == EVIL
    assert page.locator("img[src=x]").count() == 0
    assert page.locator("script").count() == 1
    page.locator("button.pair").first.click()
    page.get_by_role("button", name="Next").click()


def test_features_of_a_table_are_shown(visit):
    page = visit("table")
    first = page.locator(".card").first
    assert first.locator("tbody tr").count() == 30
    page.locator(".card").nth(1).locator("summary").click()
    assert page.locator(".card").nth(1).locator("table").is_visible()


def test_print_is_light_and_has_every_card(visit):
    page = visit("faces", color_scheme="dark")
    page.emulate_media(media="print", color_scheme="dark")
    assert on_screen(page) == 2 * N
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not page.locator("nav").is_visible()


def test_without_the_script_everything_is_there(visit):
    page = visit("faces", java_script_enabled=False)
    assert on_screen(page) == 2 * N
    assert not page.locator("#filters").is_visible()
