"""What the pages call planned is not there yet, and what they do not call planned is."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from attention_phases import focus_dilution, positional_semantic, stored

if TYPE_CHECKING:
    from types import ModuleType

BOOK = Path(__file__).resolve().parents[2] / "book"


def rows(page: str) -> list[tuple[ModuleType, str]]:
    """The rows of a page's tables that have code in them, each with the part that its names are in."""
    first, _, second = (BOOK / f"{page}.md").read_text(encoding="utf-8").partition("\n## Part II")
    return [
        (part, line)
        for part, text in ((positional_semantic, first), (focus_dilution, second))
        for line in text.splitlines()
        if line.startswith("| ") and "`" in line
    ]


def names(text: str) -> list[str]:
    """What is set as code and can be a name: `Task.omega`, `gradient_flow` of a call, not `method="adam"`."""
    return re.findall(r"`([A-Za-z_][\w.]*)(?:\([^`]*\))?`", text)


def exists(part: ModuleType, name: str) -> bool:
    """Whether the part, or the module of stored tables, has such a name."""
    first, *rest = name.removeprefix("stored.").split(".")
    owner = getattr(stored if name.startswith("stored.") else part, first, None)
    if owner is None or not rest:
        return owner is not None
    fields = [field.name for field in dataclasses.fields(owner)] if dataclasses.is_dataclass(owner) else []
    return rest[0] in fields or hasattr(owner, rest[0])


def chapters() -> set[str]:
    """The chapters and appendices that are written, as folder/name."""
    return {f"{path.parent.name}/{path.stem}" for path in BOOK.glob("*/*.md")} - {"data/README"}


def test_the_first_page_links_every_chapter_and_calls_only_missing_ones_planned() -> None:
    text = (BOOK / "index.md").read_text(encoding="utf-8")
    entries = re.findall(r"^\d+\. (?:\[(.+?)\]\((\S+)\.md\)|(.+?)): .*?(\*\(planned\)\*)?$", text, re.MULTILINE)
    assert entries
    of_parts = {chapter for chapter in chapters() if not chapter.startswith("appendix/")}
    assert {link for _, link, _, _ in entries if link} == of_parts
    written = {chapter.partition("/")[2] for chapter in of_parts}
    for title, link, unlinked, planned in entries:
        assert bool(planned) is not bool(link), title or unlinked
        assert unlinked.lower().replace(" ", "-") not in written


def test_the_map_of_the_chapters_links_every_chapter_and_the_page_of_the_problem_sets() -> None:
    text = (BOOK / "_static" / "chapter-map.svg").read_text(encoding="utf-8")
    sets = {chapter for chapter in chapters() if chapter.startswith("homework/")}
    assert set(re.findall(r'href="([\w-]+/[\w-]+)\.html"', text)) == chapters() - sets
    assert {"homework", "teaching"} <= set(re.findall(r'href="([\w-]+)\.html"', text))


@pytest.mark.parametrize("page", ["homework", "teaching"])
def test_the_pages_on_homework_link_every_problem_set_and_the_one_on_teaching_every_chapter(page: str) -> None:
    text = (BOOK / f"{page}.md").read_text(encoding="utf-8")
    parts = ("homework/",) if page == "homework" else ("homework/", "positional-semantic/", "focus-dilution/")
    wanted = {chapter for chapter in chapters() if chapter.startswith(parts)}
    assert wanted <= set(re.findall(r"\]\((\w[\w-]*/[\w-]+)\.md\)", text))


@pytest.mark.parametrize(("part", "row"), rows("notation"))
def test_a_name_of_the_notation_exists(part: ModuleType, row: str) -> None:
    assert [name for name in names(row) if not exists(part, name)] == []


@pytest.mark.parametrize(("part", "row"), rows("paper-map"))
def test_a_name_in_the_map_of_the_papers_exists_unless_it_is_planned(part: ModuleType, row: str) -> None:
    there, _, planned = row.partition("*planned*")
    assert [name for name in names(there) if not exists(part, name)] == []
    assert [name for name in names(planned) if exists(part, name)] == []


@pytest.mark.parametrize("part", [positional_semantic, focus_dilution])
def test_the_library_reference_has_each_public_name_once(part: ModuleType) -> None:
    text = (BOOK / "api.md").read_text(encoding="utf-8")
    modules = re.split(r"^\.\. currentmodule:: ", text, flags=re.MULTILINE)[1:]
    listed = [
        name
        for module in modules
        if module.split()[0] in (part.__name__, "attention_phases.errors", "attention_phases.estimates")
        for name in re.findall(r"^\.\. auto\w+:: (\w+)", module, re.MULTILINE)
    ]
    assert sorted(listed) == sorted(set(listed) | set(part.__all__))


def seconds(text: str) -> float:
    """A time in words, or in a table's short form."""
    words = {"a": 1, "an": 1, "half a": 0.5, "half an": 0.5}
    units = {"h": 3600, "m": 60, "s": 1}
    found = re.fullmatch(r"(half an?|an?|\d+) (h|m|s)\w*", text)
    assert found, text
    return float(words.get(found[1]) or found[1]) * units[found[2]]


def test_the_times_for_teachers_are_those_of_the_chapters() -> None:
    table = re.findall(r"^\| \[.*\]\((\S+\.md)\) .* (\d+ min), (\d+ s) \|$", (BOOK / "teaching.md").read_text(), re.M)
    stated = {}
    for page in (BOOK / "positional-semantic", BOOK / "focus-dilution"):
        for path in page.glob("*.md"):
            times = re.search(r"^\*It takes\* about (.*) to read and (.*) to run\.$", path.read_text(), re.M)
            assert times, path
            stated[path.relative_to(BOOK).as_posix()] = (seconds(times[1]), seconds(times[2]))
    assert {page: (seconds(read), seconds(run)) for page, read, run in table} == stated
