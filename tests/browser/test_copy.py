"""A click copies what stands in a block: a chapter's citation, the book's, and code."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import Locator, Page

    OpenPage = Callable[..., Page]

real = pytest.mark.parametrize("site", ["real"], indirect=True)


def copied(tab: Page, block: Locator) -> str:
    """What a reader can paste after a click on the block's button."""
    block.hover()
    button = block.locator("xpath=following-sibling::button")
    expect(button).to_be_visible()
    button.click()
    tab.evaluate("document.body.insertAdjacentHTML('beforeend', '<textarea id=paste></textarea>')")
    tab.locator("#paste").press("ControlOrMeta+v")
    return tab.locator("#paste").input_value()


@real
def test_one_click_copies_how_to_cite_a_chapter(open_page: OpenPage) -> None:
    tab = open_page("book/focus-dilution/focus")
    tab.get_by_text("Cite this chapter").click()
    text = copied(tab, tab.locator(".ap-cite pre"))
    assert text.startswith("@incollection{phases-of-attention-focus,\n")
    assert text.rstrip().endswith("}")
    assert re.search(r"^  title +=\s+\{Focus\},$", text, re.MULTILINE)
    assert re.search(r"^  url +=\s+\{https://\S+/book/focus-dilution/focus\.html\}$", text, re.MULTILINE)


@real
def test_one_click_copies_how_to_cite_the_book(open_page: OpenPage) -> None:
    tab = open_page("book/index")
    text = copied(tab, tab.locator(".highlight-bibtex pre").first)
    assert text.startswith("@misc{phases-of-attention,\n")
    assert {"@inproceedings{cui2024,", "@inproceedings{chen2026,"} <= set(text.splitlines())


@real
def test_one_click_copies_code_as_it_can_be_run(open_page: OpenPage) -> None:
    tab = open_page("book/quickstart")
    block = tab.locator(".cell_input pre").first
    text = copied(tab, block)
    compile(text, "copied", "exec")
    assert text.strip() == block.inner_text().strip()
