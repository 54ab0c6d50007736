"""Test the console's page in Chromium: what it shows, by mouse, by keyboard, on a phone."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import pytest
from playwright.sync_api import Browser, Page, expect

from supply_chain.npm import AXE, fetch
from tests.console.history import MARKUP, PICTURES, Guarded, Shown

# Guards against hanging; a busy machine takes seconds.
expect.set_options(timeout=30_000)


@contextmanager
def phone(browser: Browser, shown: Shown) -> Iterator[Page]:
    page = browser.new_page(
        viewport={"width": 390, "height": 844}, color_scheme="dark", has_touch=True
    )
    with Guarded(page, shown):
        yield page
    page.close()


@pytest.fixture(scope="session")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The source of axe, which checks accessibility."""
    folder = tmp_path_factory.mktemp("axe")
    fetch(AXE, folder)
    return (folder / "axe.min.js").read_text()


def picture(page: Page, name: str, height: int, width: int = 1_280) -> None:
    """Take a picture without the time of reading and the paths of this run."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    page.locator("#status").evaluate("element => element.textContent = ''")
    page.locator("#figures .note").evaluate_all("notes => notes.forEach(note => note.remove())")
    path = PICTURES / f"console-{name}.png"
    page.screenshot(path=path, clip={"x": 0, "y": 0, "width": width, "height": height})


def test_topics_are_listed_searched_and_opened(page: Page, shown: Shown) -> None:
    page.goto(shown.console.url)
    rows = page.locator("main tbody tr")
    expect(rows).to_have_count(4)
    expect(rows.first).to_contain_text("orders")
    expect(rows.first).to_contain_text("7 d")
    expect(page.locator("main")).to_contain_text("on hold")
    picture(page, "topics", 390)
    page.get_by_label("Name contains").fill("proto")
    page.keyboard.press("Enter")
    expect(rows).to_have_count(1)
    page.get_by_role("link", name="__proto__").click()
    expect(page.get_by_role("heading", name="__proto__")).to_be_visible()
    page.get_by_role("link", name="__proto__-0").click()
    expect(page.locator(".chart canvas").first).to_be_visible()


def test_a_segment_is_opened_by_a_click_in_the_chart(page: Page, shown: Shown) -> None:
    page.goto(shown.url(*shown.partition))
    over = page.locator(".u-over")
    expect(over).to_be_visible()
    expect(page.locator("#legend li")).to_have_count(4)
    box = over.bounding_box()
    assert box is not None
    # The first lane, in the middle of the log.
    x, y = box["width"] / 2, box["height"] * 0.1
    over.hover(position={"x": x, "y": y})
    expect(page.locator("#tip")).to_contain_text(re.compile(r"1 segment: offsets 1,9\d\d"))
    picture(page, "partition", 760)
    over.click(position={"x": x, "y": y})
    life = page.locator(".life")
    expect(life).to_contain_text(re.compile(r"Segment 1,9\d\d"))
    expect(life).to_contain_text("COPY_SEGMENT_FINISHED")
    expect(life.locator("code").filter(has_text=".manifest")).to_be_visible()
    assert "segment=" in page.url
    life.scroll_into_view_if_needed()
    life.screenshot(path=PICTURES / "console-segment.png")
    # The address names the segment: another person sees the same.
    page.reload()
    expect(page.locator(".life")).to_contain_text("COPY_SEGMENT_FINISHED")


def test_dragging_zooms_and_the_keyboard_moves(page: Page, shown: Shown) -> None:
    page.goto(shown.url(*shown.partition))
    box = page.locator(".u-over").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 10, box["y"] + 20)
    page.mouse.down()
    page.mouse.move(box["x"] + 110, box["y"] + 20, steps=3)
    page.mouse.up()
    view = page.locator("#bar .quiet")
    expect(view).to_have_text(re.compile(r"offsets \d\d to 3\d\d, 3\d segments in view"))
    chart = page.get_by_role("group", name=re.compile("Timeline"))
    chart.focus()
    before = view.inner_text()
    page.keyboard.press("ArrowRight")
    expect(view).not_to_have_text(before)
    page.keyboard.press("0")
    expect(view).to_have_text(re.compile(r"offsets 0 to 3,97\d"))
    page.get_by_role("button", name="By time").click()
    expect(view).to_contain_text("20")
    assert "axis=time" in page.url
    # From the keyboard alone: the table has what the chart has.
    first = page.locator("#list tbody button").first
    first.focus()
    page.keyboard.press("Enter")
    expect(page.locator(".life")).to_contain_text("DELETE_SEGMENT_STARTED")


def test_text_from_outside_stays_text(page: Page, shown: Shown) -> None:
    for path in ("anomalies", f"topic/{shown.partition[1]}/orders"):
        page.goto(shown.url(path))
        expect(page.locator("main")).to_contain_text(MARKUP)
    expect(page).to_have_title("orders - Sediment")
    assert page.locator("img").count() == 0


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("", "orders"),
        ("sweeps", "9.0 GiB"),
        ("health", "RLMM"),
        ("nothing", "There is no such page"),
        ("topics?offset=500", "there are 4, and no such page"),
        ("topics?search=zzz", "no name contains this"),
    ],
)
def test_other_pages_show_what_they_are_for(page: Page, shown: Shown, path: str, text: str) -> None:
    page.goto(shown.url(path))
    expect(page.locator("main")).to_contain_text(text)


def test_every_page_says_how_many_problems_there_are(page: Page, shown: Shown) -> None:
    """One topic on hold and a corrupt object: the page of health has a critical line."""
    for path in ("topics", "sweeps"):
        page.goto(shown.url(path))
        expect(page.locator("#health")).to_have_text(re.compile(r"Health: 1 critical"))
        expect(page.locator("#health")).to_have_class("CRITICAL")
    page.locator("#health").click()
    expect(page.get_by_role("heading", name="Health")).to_be_visible()
    expect(page.locator("main table").nth(1).locator("tbody tr").first).to_contain_text("critical")


def test_a_partition_leads_back_to_its_topic_and_names_the_tab(page: Page, shown: Shown) -> None:
    page.goto(shown.url(*shown.partition))
    way = page.get_by_role("navigation", name="The way to this page")
    expect(way).to_have_text("Topics / orders / orders-0")
    expect(page).to_have_title("orders-0 - Sediment")
    way.get_by_role("link", name="orders").click()
    expect(page.get_by_role("heading", name="Settings")).to_be_visible()


def test_heads_sort_the_rows(page: Page, shown: Shown) -> None:
    page.goto(shown.url("topics"))
    names = page.locator("main tbody tr td:first-child")
    expect(names.first).to_have_text("orders")
    page.get_by_role("button", name="topic", exact=True).click()
    expect(names).to_have_text(["__proto__", "audit.log", "orders", "payments"])
    page.get_by_role("button", name="segments", exact=True).click()
    expect(names.first).to_have_text("orders")
    page.get_by_role("button", name="segments", exact=True).click()
    expect(names.first).to_have_text("__proto__")
    expect(page.locator("th[aria-sort=ascending]")).to_have_text("segments")


PAGES = ("topics", "topic", "partition", "anomalies", "sweeps", "health", "nothing")


@pytest.mark.parametrize("width", [1_280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_pages_fit_and_axe_finds_nothing(
    browser: Browser, shown: Shown, axe: str, width: int, scheme: Literal["light", "dark"]
) -> None:
    page = browser.new_page(
        viewport={"width": width, "height": 900}, color_scheme=scheme, reduced_motion="reduce"
    )
    # The page's own policy lets no script in but its own.
    with Guarded(page, shown):
        for name in PAGES:
            ways: dict[str, tuple[object, ...]] = {
                "topic": ("topic", *shown.partition[1:3]),
                "partition": shown.partition,
            }
            page.goto(shown.url(*ways.get(name, (name,))))
            expect(page.locator("#health")).to_have_class("CRITICAL")
            expect(page.locator("main h2")).to_be_visible()
            picture(page, f"{name}-{width}-{scheme}", 900, width)
            wide = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
            assert wide <= 0, name
            found = page.evaluate(f"{axe}; axe.run().then(found => found.violations)")
            assert [(each["id"], each["nodes"][0]["html"]) for each in found] == [], name
    page.close()


def test_the_page_works_on_a_phone_in_the_dark(browser: Browser, shown: Shown) -> None:
    with phone(browser, shown) as page:
        page.goto(shown.url(*shown.partition))
        expect(page.locator(".u-over")).to_be_visible()
        wide = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
        assert wide <= 0
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert ground == "rgb(20, 23, 28)"
        picture(page, "phone", 800, 390)
