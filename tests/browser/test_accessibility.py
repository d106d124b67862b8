"""axe-core finds no serious fault on any page in either theme; what a keyboard reaches can be seen and used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import pytest
from axe_playwright_python.base import AXE_SCRIPT
from built_pages import every_chapter, every_page, one_chapter
from playwright.sync_api import expect

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import Page

    OpenPage = Callable[..., Page]

# A colour that is on its way from one theme to the other is none that a reader reads.
STILL = "*, ::before, ::after { animation: none !important; transition: none !important; }"

# A colour check takes milliseconds for each piece of text, the more the longer the page is. Of what a page repeats,
# some stays: one token of code of each kind, ten entries of the library reference, three rows of a table of numbers.
THIN = """() => {
  const seen = {};
  const nth = (element) => (seen[element.className] = (seen[element.className] ?? 0) + 1);
  for (const entry of document.querySelectorAll("dl.py")) if (nth(entry) > 10) entry.remove();
  for (const token of document.querySelectorAll(":is(.highlight, .sig, code) span")) {
    if (nth(token) > 1) token.replaceWith(...token.childNodes);
  }
  for (const row of document.querySelectorAll("table.dataframe tbody tr:nth-child(n + 4)")) row.remove();
  document.body.normalize();
}"""


def faults(tab: Page, theme: Literal["light", "dark"]) -> list[str]:
    """The serious and critical faults of a page in a theme: rule, place, and what to mend."""
    tab.emulate_media(color_scheme=theme)
    tab.wait_for_function("theme => document.documentElement.dataset.theme === theme", arg=theme)
    found = tab.evaluate("axe.run({ preload: false, resultTypes: ['violations'] })")
    assert len(found["passes"]) > 10  # it has looked
    return [
        f"{theme}: {rule['id']} at {node['target']}: {node['failureSummary']}"
        for rule in found["violations"]
        if rule["impact"] in ("serious", "critical")
        for node in rule["nodes"]
    ]


def prepared(tab: Page) -> Page:
    """A page with axe-core on it, and nothing in motion."""
    tab.add_style_tag(content=STILL)
    tab.evaluate(AXE_SCRIPT)
    return tab


@every_page
def test_axe_finds_no_serious_fault_in_either_theme(open_page: OpenPage, page: str) -> None:
    tab = prepared(open_page(page, set_formulas=False))  # a formula is made of dozens of elements; see below
    tab.evaluate(THIN)
    assert faults(tab, "light") + faults(tab, "dark") == []


@pytest.mark.parametrize(
    ("site", "page"), [("real", "book/quickstart"), ("real", "search"), ("real", "book/appendix/numerics")],
    indirect=["site"],
)  # fmt: skip
def test_axe_finds_no_serious_fault_with_all_that_there_is(open_page: OpenPage, page: str) -> None:
    tab = prepared(open_page(page))
    tab.evaluate("window.MathJax?.startup.promise.then(() => true)")
    assert faults(tab, "light") + faults(tab, "dark") == []


@every_chapter
def test_what_is_folded_opens_and_closes_by_keyboard(open_page: OpenPage, page: str) -> None:
    tab = open_page(page, set_formulas=False)
    folded = tab.locator("article :is(.dropdown.admonition, details)")
    assert folded.count() >= 3
    for place in folded.all():
        switch = place.locator("> summary, > .admonition-title > button")
        hidden = place.locator("> :not(summary, .admonition-title)").first
        for open_now in (True, False):
            switch.press("Enter")
            expect(hidden).to_be_visible(visible=open_now)
        switch.press("Space")
        expect(hidden).to_be_visible()  # what is folded inside it comes next


@one_chapter
def test_the_first_stop_of_the_keyboard_skips_to_the_text(open_page: OpenPage, page: str) -> None:
    tab = open_page(page)
    link = tab.get_by_role("link", name="Skip to main content")
    expect(link).not_to_be_in_viewport()
    tab.keyboard.press("Tab")
    expect(link).to_be_focused()
    expect(link).to_be_in_viewport()
    tab.keyboard.press("Enter")
    tab.keyboard.press("Tab")
    assert tab.evaluate("document.activeElement.closest('main') !== null")


@one_chapter
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_focus_is_seen_wherever_the_keyboard_goes(open_page: OpenPage, page: str, theme: str) -> None:
    tab = prepared(open_page(page, color_scheme=theme, set_formulas=False))
    look = """() => {
      const stop = document.activeElement, style = getComputedStyle(stop);
      const seen = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 1 || style.boxShadow !== "none";
      return [stop === document.body, seen, stop.outerHTML.slice(0, 200)];
    }"""
    stops, unseen = 0, []
    tab.keyboard.press("Tab")
    while not (state := tab.evaluate(look))[0]:
        stops += 1
        unseen += [] if state[1] else [state[2]]
        tab.keyboard.press("Tab")
    assert stops > 60
    assert unseen == []
