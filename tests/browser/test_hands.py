"""A reader with a finger, with a keyboard, or with a printer: what the theme alone would spoil for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from built_pages import small_page
from playwright.sync_api import expect

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import Locator, Page

    OpenPage = Callable[..., Page]

PHONE = {"viewport": {"width": 375, "height": 812}, "has_touch": True, "is_mobile": True}
SMALLEST = 24  # CSS pixels of a target that a finger hits: WCAG 2.2, 2.5.8

focus_page = pytest.mark.parametrize(("site", "page"), [("real", "book/focus-dilution/focus")], indirect=["site"])
two_pages = pytest.mark.parametrize(
    ("site", "page"), [("small", "first"), ("real", "book/focus-dilution/focus")], indirect=["site"]
)


def set_in_type(tab: Page) -> None:
    """Wait until formulas are set, and what waits for them has looked at them."""
    tab.evaluate("MathJax.startup.promise.then(() => new Promise(requestAnimationFrame))")


def menu_button(tab: Page, menu: str) -> Locator:
    """The button that opens a menu over a narrow page."""
    return tab.get_by_role("button", name=f"Toggle {menu} sidebar")


@two_pages
def test_the_contents_close_when_a_section_is_chosen(open_page: OpenPage, page: str) -> None:
    tab = open_page(page, set_formulas=False, **PHONE)
    menu_button(tab, "secondary").tap()
    menu = tab.locator("#pst-secondary-sidebar-modal")
    link = menu.locator("a").last
    target = str(link.get_attribute("href"))
    link.tap()
    expect(menu).to_be_hidden()
    assert tab.url.endswith(target)
    expect(tab.locator(target)).to_be_in_viewport()


@two_pages
@pytest.mark.parametrize("menu", ["primary", "secondary"])
def test_a_menu_closed_by_keyboard_gives_the_focus_back(open_page: OpenPage, page: str, menu: str) -> None:
    tab = open_page(page, set_formulas=False, viewport={"width": 700, "height": 900})
    tab.keyboard.press("Tab")  # the keyboard is in use
    button = menu_button(tab, menu)
    button.press("Enter")
    expect(tab.locator(f"#pst-{menu}-sidebar-modal")).to_be_visible()
    tab.keyboard.press("Escape")
    expect(tab.locator(f"#pst-{menu}-sidebar-modal")).to_be_hidden()
    expect(button).to_be_focused()


@small_page
def test_the_button_of_the_theme_can_be_pressed_again(open_page: OpenPage, page: str) -> None:
    tab = open_page(page, color_scheme="light")
    tab.keyboard.press("Tab")
    switch = tab.get_by_role("button", name="Color mode").filter(visible=True).first
    switch.press("Enter")
    expect(switch).to_be_focused()


@two_pages
def test_links_below_a_figure_can_be_hit_by_a_finger(open_page: OpenPage, page: str) -> None:
    tab = open_page(page, set_formulas=False, **PHONE)
    links = tab.locator(".ap-links a").all()
    assert len(links) >= 3
    for link in links:
        box = link.bounding_box()
        assert box is not None
        assert min(box["width"], box["height"]) >= SMALLEST


@focus_page
def test_a_finger_sees_the_button_that_copies(open_page: OpenPage, page: str) -> None:
    tab = open_page(page, set_formulas=False, **PHONE)
    button = tab.locator("article button.copybtn").first
    expect(button).to_have_css("opacity", "1")
    box = button.bounding_box()
    assert box is not None
    assert min(box["width"], box["height"]) >= SMALLEST


@focus_page
def test_the_whole_title_of_a_solution_opens_it(open_page: OpenPage, page: str) -> None:
    tab = open_page(page, set_formulas=False)
    address = tab.url
    for solution in tab.locator(".solution.dropdown").all():
        inside = solution.locator("> :not(.admonition-title)").first
        expect(inside).to_be_hidden()
        title = solution.locator("> .admonition-title")
        assert title.locator("a").count() == 0
        title.click(position={"x": 120, "y": 15})  # on the exercise's name
        expect(inside).to_be_visible()
    assert tab.url == address


@focus_page
def test_formulas_in_sentences_are_no_stops_of_the_keyboard(open_page: OpenPage, page: str) -> None:
    tab = open_page(page)
    set_in_type(tab)
    assert tab.locator("article mjx-container:not([display])").count() > 100
    expect(tab.locator("article mjx-container:not([display])[tabindex]")).to_have_count(0)
    assert tab.locator("article mjx-container[display][tabindex]").count() > 5


@focus_page
def test_a_formula_in_a_sentence_that_is_wider_than_a_phone_scrolls(open_page: OpenPage, page: str) -> None:
    tab = open_page(page, **PHONE)
    set_in_type(tab)
    expect(tab.locator("mjx-container.ap-wide-formula").first).to_have_attribute("data-wide", "")
    cut = """() => [...document.querySelectorAll("article mjx-container:not([display], td *, .ap-wide-formula)")]
        .filter((formula) => formula.getBoundingClientRect().right > 375)
        .map((formula) => formula.textContent)"""
    assert tab.evaluate(cut) == []
    formula = tab.locator("mjx-container.ap-wide-formula[data-wide]").first
    formula.evaluate("formula => formula.scrollTo(1000, 0)")
    right = "formula => formula.firstElementChild.getBoundingClientRect().right"
    assert formula.evaluate(right) <= 375
    tab.set_viewport_size({"width": 1280, "height": 800})
    expect(tab.locator("mjx-container.ap-wide-formula")).to_have_count(0)


@focus_page
def test_a_phone_with_text_a_quarter_larger_needs_no_scroll_sideways(open_page: OpenPage, page: str) -> None:
    tab = open_page(page, **PHONE)
    set_in_type(tab)
    tab.add_style_tag(content="html { font-size: 20px !important; }")
    tab.wait_for_timeout(300)  # wide formulas are looked for anew
    assert tab.evaluate("document.documentElement.scrollWidth") == 375


@small_page
def test_a_formula_stays_on_one_line_with_the_signs_beside_it(open_page: OpenPage, page: str) -> None:
    tab = open_page(page)
    glued = tab.locator("article .ap-glued")
    assert [text.replace("\\", "") for text in glued.all_inner_texts()] == ["(a = b)).", "(c)."]
    assert set(glued.evaluate_all("all => all.map(one => getComputedStyle(one).whiteSpace)")) == {"nowrap"}


@focus_page
def test_print_opens_proofs_and_leaves_the_contents_out(open_page: OpenPage, page: str) -> None:
    tab = open_page(page, set_formulas=False)
    proofs = tab.locator("details.sd-dropdown")
    assert proofs.count() >= 2
    look = """addEventListener("beforeprint", () => {
        window.opened = [...document.querySelectorAll("details.sd-dropdown")].map((proof) => proof.open);
    })"""
    tab.evaluate(look)
    tab.pdf()
    assert tab.evaluate("window.opened") == [True] * proofs.count()
    assert proofs.evaluate_all("all => all.some(proof => proof.open)") is False  # as they were
    tab.emulate_media(media="print")
    for place in ("#jb-print-toc", "details.ap-cite"):
        expect(tab.locator(place)).to_be_hidden()


@pytest.mark.parametrize("site", ["real"], indirect=True)
def test_print_cuts_no_table(open_page: OpenPage) -> None:
    tab = open_page("book/positional-semantic/phase-transition", viewport={"width": 680, "height": 1000})
    tab.emulate_media(media="print")  # the width of A4 between margins of 15 mm
    beyond = """() => [...document.querySelectorAll("article table")]
        .map((table) => table.getBoundingClientRect().right - document.documentElement.clientWidth)
        .filter((pixels) => pixels > 0)"""
    assert tab.locator("article table").count() > 3
    assert tab.evaluate(beyond) == []
