"""What the pages call planned is not there yet, and what they do not call planned is."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import attention_phases.positional_semantic as part
import pytest
from attention_phases import stored

BOOK = Path(__file__).resolve().parents[2] / "book"


def rows(page: str) -> list[str]:
    """The rows of a page's tables on Part I."""
    text, _, _ = (BOOK / f"{page}.md").read_text(encoding="utf-8").partition("\n## Part II")
    return [line for line in text.splitlines() if line.startswith("| ") and "`" in line]


def names(text: str) -> list[str]:
    """What is set as code and can be a name: `Task.omega`, not `method="adam"`."""
    return re.findall(r"`([A-Za-z_][\w.]*)`", text)


def exists(name: str) -> bool:
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


def test_the_map_of_the_chapters_links_every_chapter() -> None:
    text = (BOOK / "_static" / "chapter-map.svg").read_text(encoding="utf-8")
    assert set(re.findall(r'href="([\w-]+/[\w-]+)\.html"', text)) == chapters()


@pytest.mark.parametrize("row", rows("notation"))
def test_a_name_of_the_notation_exists_unless_it_is_planned(row: str) -> None:
    for name in names(row):
        assert exists(name) is ("planned" not in row), name


@pytest.mark.parametrize("row", rows("paper-map"))
def test_a_name_in_the_map_of_the_papers_exists_unless_it_is_planned(row: str) -> None:
    there, _, planned = row.partition("*planned*")
    assert [name for name in names(there) if not exists(name)] == []
    assert [name for name in names(planned) if exists(name)] == []
