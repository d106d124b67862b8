"""Facts about the pages as a reader has them: sliders, themes, a phone, print, no JavaScript."""

from __future__ import annotations

import io
from collections import Counter
from typing import TYPE_CHECKING
from urllib.parse import unquote, urljoin, urlsplit

import pytest
from attention_phases._style import DARK, DARK_PAPER, INK
from bs4 import BeautifulSoup, Tag
from built_pages import every_page, small_page
from PIL import Image
from playwright.sync_api import expect

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from playwright.sync_api import Locator, Page

    OpenPage = Callable[..., Page]

MAX_BYTES = 3_000_000
PHONE = {"viewport": {"width": 375, "height": 812}}


menu_page = pytest.mark.parametrize(
    ("site", "page"),
    [("small", "first"), ("real", "book/index"), ("real", "book/positional-semantic/teacher-student")],
    indirect=["site"],
)


def shown(tab: Page) -> Locator:
    """The pictures of the theme that is on, and whether they are there."""
    return tab.locator("article .ap-figure > img:visible")


def loaded(picture: Locator) -> bool:
    """Whether the picture's file has come."""
    picture.scroll_into_view_if_needed()
    return bool(picture.evaluate("image => image.decode().then(() => image.naturalWidth > 0)"))


@every_page
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_each_figure_shows_the_picture_of_the_theme(open_page: OpenPage, page: str, theme: str) -> None:
    tab = open_page(page, color_scheme=theme)
    assert shown(tab).count() == tab.locator(".ap-figure").count()
    for picture in shown(tab).all():
        assert loaded(picture)
        assert str(picture.get_attribute("src")).endswith("#dark") == (theme == "dark")
        assert len(str(picture.get_attribute("alt")).split()) >= 5


@every_page
def test_no_page_scrolls_sideways_on_a_phone(open_page: OpenPage, page: str) -> None:
    tab = open_page(page, **PHONE)
    assert tab.evaluate("document.documentElement.scrollWidth") == 375


@pytest.mark.parametrize("site", ["real"], indirect=True)
@pytest.mark.parametrize("width", [375, 1280])
def test_a_long_signature_has_a_line_for_each_argument(open_page: OpenPage, width: int) -> None:
    tab = open_page("book/api", viewport={"width": width, "height": 812})
    signatures = tab.locator("dt.ap-long").all()
    assert len(signatures) > 10
    for signature in signatures:
        starts = signature.locator(".sig-param").evaluate_all("all => all.map(one => one.getBoundingClientRect().top)")
        assert starts == sorted(set(starts))
        assert all(text.endswith(",") for text in signature.locator(".sig-param").all_inner_texts()[:-1])


@menu_page
@pytest.mark.parametrize("width", [375, 900])
@pytest.mark.parametrize("menu", ["primary", "secondary"])
def test_a_button_opens_the_sidebar_and_another_the_contents(
    open_page: OpenPage, page: str, width: int, menu: str
) -> None:
    tab = open_page(page, viewport={"width": width, "height": 812}, has_touch=True)
    link = tab.locator(f"#pst-{menu}-sidebar-modal a, #pst-{menu}-sidebar a").first
    expect(link).not_to_be_in_viewport()
    tab.get_by_role("button", name=f"Toggle {menu} sidebar").tap()
    expect(link).to_be_in_viewport()
    tab.touchscreen.tap(*{"primary": (width - 20, 400), "secondary": (20, 400)}[menu])  # beside what has opened
    expect(link).not_to_be_in_viewport()


@menu_page
def test_a_wide_page_has_one_search_box(open_page: OpenPage, page: str) -> None:
    tab = open_page(page, viewport={"width": 1280, "height": 812})
    expect(tab.get_by_role("button", name="Search").filter(visible=True)).to_have_count(1)
    tab.get_by_role("button", name="Search").click()
    expect(tab.get_by_role("searchbox").filter(visible=True)).to_have_count(1)


@every_page
def test_each_slider_shows_another_frame(open_page: OpenPage, page: str) -> None:
    tab = open_page(page)
    for figure in tab.locator(".ap-explore").all():
        picture, state = figure.locator("> img:visible"), figure.locator(".ap-still span")
        for slider in figure.get_by_role("slider").all():
            name = slider.evaluate("slider => slider.labels[0].textContent")
            assert name
            assert slider.get_attribute("aria-valuetext")
            before = (picture.get_attribute("src"), picture.get_attribute("alt"), state.text_content())
            at_end = slider.input_value() == slider.get_attribute("max")
            slider.press("ArrowLeft" if at_end else "ArrowRight")
            after = (picture.get_attribute("src"), picture.get_attribute("alt"), state.text_content())
            assert all(one != other for one, other in zip(before, after, strict=True)), name
            assert loaded(picture)
            value = slider.get_attribute("aria-valuetext")
            assert value == tab.locator(f'output[for="{slider.get_attribute("id")}"]').text_content()
            assert f"{name} = {value}" in str(after[2])


@every_page
def test_a_page_with_its_frames_is_light(site: Path, page: str) -> None:
    path = site / f"{page}.html"
    article = BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser").find("article")
    assert isinstance(article, Tag)
    addresses = {str(image["src"]) for image in article.find_all("img")}  # those of frames not shown yet too
    files = {(path.parent / unquote(urlsplit(address).path)).resolve() for address in addresses}
    assert path.stat().st_size + sum(file.stat().st_size for file in files) <= MAX_BYTES


@small_page
def test_a_dark_picture_is_bright_on_a_transparent_ground(open_page: OpenPage, page: str) -> None:
    grounds = {"light": "#ffffff", "dark": DARK_PAPER}
    inks = {"light": INK, "dark": DARK[INK]}
    for theme, other in (("light", "dark"), ("dark", "light")):
        tab = open_page(page, color_scheme=theme)
        picture = shown(tab).first
        assert loaded(picture)
        pixels = Image.open(io.BytesIO(picture.screenshot())).convert("RGB").tobytes()
        counts = Counter(f"#{pixels[start : start + 3].hex()}" for start in range(0, len(pixels), 3))
        assert max(counts, key=counts.__getitem__) == grounds[theme]
        assert counts[inks[theme]] > 100
        assert inks[other] not in counts


@small_page
def test_only_the_shown_frame_is_loaded_and_its_neighbours_after_the_first_move(open_page: OpenPage, page: str) -> None:
    tab = open_page(page)
    stored = (
        "[...document.querySelector('.ap-explore template').content.children].map(frame => frame.getAttribute('src'))"
    )
    frames = [urljoin(tab.url, address) for address in tab.evaluate(stored)]
    requests: list[str] = []
    tab.on("request", lambda request: requests.append(request.url))
    tab.reload()
    assert loaded(tab.locator(".ap-explore > img:visible"))
    assert {address for address in requests if address in frames} == {frames[2]}  # omega = 0.5, semantic
    with tab.expect_request(frames[5]):  # omega = 1, positional: a neighbour of the next frame
        tab.get_by_label("ω").press("ArrowRight")
    assert {address for address in requests if address in frames} == {frames[2], frames[4], frames[5]}


@small_page
def test_the_frame_at_which_a_slider_rests_is_announced(open_page: OpenPage, page: str) -> None:
    tab = open_page(page)
    spoken = tab.locator(".ap-spoken")
    assert spoken.get_attribute("aria-live") == "polite"
    assert spoken.text_content() == ""
    tab.get_by_label("kind").press("ArrowRight")
    tab.wait_for_function("document.querySelector('.ap-spoken').textContent !== ''")
    assert spoken.text_content() == "A line of the kind positional that rises to 0.5."


@small_page
def test_the_frame_that_is_shown_can_be_downloaded(open_page: OpenPage, page: str) -> None:
    tab = open_page(page)
    figure = tab.locator(".ap-explore")
    tab.get_by_label("ω").press("End")
    link = figure.get_by_role("link", name="this frame (SVG): slope")
    assert link.get_attribute("href") == figure.locator("> img:visible").get_attribute("src")
    assert link.get_attribute("download") == "slope.svg"


@small_page
def test_the_focus_of_a_slider_can_be_seen(open_page: OpenPage, page: str) -> None:
    tab = open_page(page)
    tab.get_by_label("ω").press("ArrowRight")
    outline = tab.get_by_label("ω").evaluate("slider => getComputedStyle(slider).outlineStyle")
    assert outline == "solid"


@small_page
def test_one_panel_fits_a_phone_and_two_say_that_they_scroll(open_page: OpenPage, page: str) -> None:
    tab = open_page(page, **PHONE)
    hint = "figure => getComputedStyle(figure, '::before').content"
    one, two = tab.locator(".ap-explore"), tab.locator(".ap-panels")
    expect(two).to_have_attribute("data-wide", "")
    assert "Scroll" in two.evaluate(hint)
    assert one.evaluate("figure => figure.scrollWidth === figure.clientWidth")
    assert one.evaluate(hint) == "none"


@small_page
def test_a_wide_figure_scrolls_inside_itself_and_its_links_stay(open_page: OpenPage, page: str) -> None:
    tab = open_page(page, **PHONE)
    figure = tab.locator(".ap-figure").first
    links = figure.locator(".ap-links")
    assert figure.evaluate("figure => figure.scrollWidth > figure.clientWidth")
    before = links.bounding_box()
    figure.evaluate("figure => figure.scrollTo(50, 0)")
    assert figure.evaluate("figure => figure.scrollLeft") == 50
    assert links.bounding_box() == before


@small_page
def test_what_is_wider_than_a_phone_fades_at_the_side_where_more_is(open_page: OpenPage, page: str) -> None:
    tab = open_page(page, **PHONE)
    table, figure = tab.locator(".pst-scrollable-table-container"), tab.locator(".ap-figure").first
    for place, faded in ((table, table), (figure, figure.locator("> img:visible"))):
        hidden = place.evaluate("place => place.scrollWidth - place.clientWidth")
        assert hidden > 20
        ends = {}
        for end, position in (("first", 0), ("last", hidden)):
            place.evaluate("(place, position) => place.scrollTo(position, 0)", position)
            expect(place).to_have_css("--ap-before", f"{position}px")
            expect(place).to_have_css("--ap-after", f"{hidden - position}px")
            ends[end] = faded.evaluate("faded => getComputedStyle(faded).maskImage")
        assert ends["first"] != ends["last"]
        assert all(mask.startswith("linear-gradient(to right, rgba(0, 0, 0, 0)") for mask in ends.values())


@small_page
def test_what_fits_its_place_does_not_fade(open_page: OpenPage, page: str) -> None:
    tab = open_page(page, viewport={"width": 1280, "height": 812})
    expect(tab.locator(".ap-figure").first).to_have_css("--ap-after", "0px")
    assert tab.locator(".ap-figure[data-wide], .pst-scrollable-table-container[data-wide]").count() == 0
    assert shown(tab).first.evaluate("image => getComputedStyle(image).maskImage") == "none"


@small_page
def test_without_javascript_there_is_one_frame_and_a_word_about_the_others(open_page: OpenPage, page: str) -> None:
    figure = open_page(page, java_script_enabled=False).locator(".ap-explore")
    assert figure.locator("> img:visible").count() == 1
    assert figure.locator("fieldset").is_hidden()
    assert str(figure.locator(".ap-still").inner_text()).startswith("One frame, at ω = 0.5, kind = semantic.")


@small_page
def test_print_has_the_frame_that_was_chosen_and_no_controls(open_page: OpenPage, page: str) -> None:
    tab = open_page(page)
    tab.get_by_label("ω").press("ArrowRight")
    tab.emulate_media(media="print")
    figure = tab.locator(".ap-explore")
    assert figure.locator("> img:visible").count() == 1
    assert figure.locator("fieldset").is_hidden()
    assert figure.locator(".ap-links").is_hidden()
    assert str(figure.locator(".ap-still").inner_text()).startswith("One frame, at ω = 1, kind = semantic.")


@small_page
def test_a_dark_page_is_printed_light_and_is_dark_again(open_page: OpenPage, page: str) -> None:
    tab = open_page(page, color_scheme="dark")
    theme = "document.documentElement.dataset.theme"
    tab.evaluate(f"addEventListener('beforeprint', () => (window.printed = {theme}))")
    tab.pdf()
    assert tab.evaluate("window.printed") == "light"
    assert tab.evaluate(theme) == "dark"


@pytest.mark.parametrize("site", ["real"], indirect=True)
def test_long_code_may_go_on_over_a_printed_page(open_page: OpenPage) -> None:
    tab = open_page("book/positional-semantic/phase-transition")
    tab.emulate_media(media="print")
    code = tab.locator(".cell_input pre").first
    holders = "code => [...'1234'].reduce((all, _) => [...all, all.at(-1).parentElement], [code])"
    styles = f"code => ({holders})(code).map(place => getComputedStyle(place)).map(style => "
    assert set(code.evaluate(styles + "style.breakInside)")) == {"auto"}
    assert set(code.evaluate(styles + "style.display)")) == {"block"}  # what is flex does not break
