"""axe-core finds no fault on any page in either theme; what a keyboard reaches can be seen and used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import pytest
from axe_playwright_python.base import AXE_SCRIPT
from built_pages import every_chapter, every_page, one_chapter, online, small_page
from playwright.sync_api import expect

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import Browser, Page, Route

    OpenPage = Callable[..., Page]

# A colour that is on its way from one theme to the other is none that a reader reads.
STILL = "*, ::before, ::after { animation: none !important; transition: none !important; }"

# A colour check takes milliseconds for each piece of text, more on a longer page. Of what a page repeats, some
# stays: of each kind, one token of code, ten entries of the library reference, and of each table of numbers three rows.
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
    """The faults of a page in a theme: rule, place, and what to mend. In the dark, only colours are others."""
    tab.emulate_media(color_scheme=theme)
    tab.wait_for_function("theme => (document.documentElement.dataset.theme ?? theme) === theme", arg=theme)
    rules = {"dark": "runOnly: ['color-contrast', 'link-in-text-block'],", "light": ""}[theme]
    found = tab.evaluate(f"axe.run({{ {rules} preload: false, resultTypes: ['violations'] }})")
    assert len(found["passes"]) >= {"dark": 1, "light": 10}[theme]  # it has looked
    return [
        f"{theme}: {rule['id']} at {node['target']}: {node['failureSummary']}"
        for rule in found["violations"]
        for node in rule["nodes"]
    ]


def prepared(tab: Page) -> Page:
    """A page with axe-core on it, and nothing in motion."""
    tab.add_style_tag(content=STILL)
    tab.evaluate(AXE_SCRIPT)
    return tab


@every_page
def test_axe_finds_no_fault_in_either_theme(open_page: OpenPage, page: str) -> None:
    tab = prepared(open_page(page, set_formulas=False))  # a formula is made of dozens of elements; see below
    tab.evaluate(THIN)
    assert faults(tab, "light") + faults(tab, "dark") == []


@pytest.mark.parametrize(
    ("site", "page"), [("real", "book/quickstart"), ("real", "search"), ("real", "book/appendix/numerics")],
    indirect=["site"],
)  # fmt: skip
def test_axe_finds_no_fault_with_all_that_there_is(open_page: OpenPage, page: str) -> None:
    tab = prepared(open_page(page))
    tab.evaluate("window.MathJax?.startup.promise.then(() => true)")
    assert faults(tab, "light") + faults(tab, "dark") == []


@pytest.mark.parametrize("site", ["real"], indirect=True)
@pytest.mark.parametrize("address", ["missing", "book/no-part/missing"])
def test_axe_finds_no_fault_on_the_page_for_missing_ones(
    browser: Browser, answer: Callable[[Route], None], address: str
) -> None:
    with browser.new_context() as context:
        tab = context.new_page()
        tab.route("**/*", answer)
        response = tab.goto(f"{online()}{address}.html")
        assert response is not None
        assert response.status == 404
        expect(tab.get_by_role("heading", name="There is no such page")).to_be_visible()
        prepared(tab)
        assert faults(tab, "light") + faults(tab, "dark") == []


FAULTY = {
    "light: image-alt": '<img src="">',
    "light: button-name": "<button></button>",
    "light: region": "",  # what is added stands outside all landmarks
    "light: empty-table-header": "<table><tr><th></th><th>a</th></tr><tr><td>1</td><td>2</td></tr></table>",
    "light: color-contrast": '<p style="color: #ddd; background: #fff">faint on white</p>',
    "dark: color-contrast": '<p class="only-dark" style="color: #333; background: #222">faint on black</p>',
}


@small_page
def test_axe_finds_the_faults_that_a_page_is_given(open_page: OpenPage, page: str) -> None:
    tab = prepared(open_page(page, set_formulas=False))
    tab.evaluate("html => document.body.insertAdjacentHTML('beforeend', html)", "".join(FAULTY.values()))
    tab.evaluate(THIN)
    found = {fault.partition(" at ")[0] for fault in faults(tab, "light") + faults(tab, "dark")}
    assert found == set(FAULTY)


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
