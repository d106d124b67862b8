"""The plain notebooks: readable Markdown, the page's own code, and a first cell that installs what the rest needs."""

from __future__ import annotations

import re
import sys
import sysconfig
import venv
from pathlib import Path
from typing import TYPE_CHECKING

import address
import colab
import jupytext
import nbformat
import notebooks
import pytest
from bs4 import BeautifulSoup
from environment import python_of
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

if TYPE_CHECKING:
    from nbformat import NotebookNode

ROOT = notebooks.ROOT
HTML = """
<article class="bd-article"><section id="start"><span id="a-label"></span>
<h2><span class="section-number">1.2. </span>A start<a class="headerlink" href="#start">#</a></h2></section>
<div class="math" id="equation-eq-one"><span class="eqno">(1.1)<a class="headerlink" href="#">#</a></span></div>
<figure id="fig-one"><figcaption><span class="caption-number">Fig. 1.3 </span>A caption.</figcaption></figure>
<div class="proof theorem admonition" id="th-one"><p class="admonition-title">
<span class="caption-number">Theorem 1.1 </span> (Small)</p></div>
<div class="proof lemma admonition" id="le-one"><p class="admonition-title">
<span class="caption-number">Lemma 1.1 </span> (Along <span class="math">\\(w_1\\)</span>)</p></div>
<div class="exercise admonition" id="ex-one"><p class="admonition-title">Exercise 1.1 (Big)</p></div>
<p id="no-title">Text.</p></article>
"""
BIBLIOGRAPHY = """
@article{one2020, author = {One, Ann}, title = {First}, journal = {Letters}, year = {2020}}
@article{two2021, author = {Two, Bob and Three, Cy}, title = {Second}, journal = {Letters}, year = {2021}}
"""
AT = "https://a.org/book/part/other.html"


@pytest.fixture
def book(tmp_path: Path) -> notebooks.Book:
    """A book with one built page and two references."""
    (tmp_path / "references.bib").write_text(BIBLIOGRAPHY, encoding="utf-8")
    found = notebooks.targets({"book/part/other": BeautifulSoup(HTML, "html.parser")})
    return notebooks.Book("https://a.org", found, tmp_path / "references.bib")


@pytest.fixture
def page(book: notebooks.Book) -> notebooks.Page:
    return notebooks.Page(book, "book/part/page")


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("By {eq}`eq-one`.", f"By [(1.1)]({AT}#equation-eq-one)."),
        ("{numref}`fig-one` shows", f"[Fig. 1.3]({AT}#fig-one) shows"),
        ("{prf:ref}`th-one`", f"[Theorem 1.1]({AT}#th-one)"),
        ("{ref}`ex-one`", f"[Exercise 1.1 (Big)]({AT}#ex-one)"),
        ("{ref}`a-label`", f"[A start]({AT}#a-label)"),
        ("{ref}`here <no-title>`", f"[here]({AT}#no-title)"),
        ("[here](no-title)", f"[here]({AT}#no-title)"),
        ("[`f`](other.md) and [x](../top.md#y)", f"[`f`]({AT}) and [x](https://a.org/book/top.html#y)"),
        ("[up](#there)", "[up](https://a.org/book/part/page.html#there)"),
        ("[out](https://b.org)", "[out](https://b.org)"),
        ("{cite}`two2021,one2020`", "[Two and Three, 2021; One, 2020]"),
        ("of {cite:t}`one2020`", "of One [2020]"),
        ("{term}`focus` and {term}`foci <focus>`", "focus and foci"),
        ("$$\nx = y\n$$ (eq-one)", "$$\nx = y\n\\tag{1.1}\n$$"),
        ("$$ x $$", "$$\nx\n$$"),
        ("```{math}\n:label: eq-one\nx\n```", "$$\nx\n\\tag{1.1}\n$$"),
        ("(a-label)=\n## A start", "## A start"),
        ("$f[a](b)$, `[a](b)` and `{eq}` stay", "$f[a](b)$, `[a](b)` and `{eq}` stay"),
        ("```text\n[a](b)\n```", "```text\n[a](b)\n```"),
        (":::{admonition} Think {eq}`eq-one`\n:class: hint\n\nOf $x$.\n:::\nOn.",
         f"---\n\n**Think [(1.1)]({AT}#equation-eq-one)**\n\nOf $x$.\n\n---\n\nOn."),
        ("```{warning}\nHot.\n```", "---\n\n**Warning**\n\nHot.\n\n---"),
        (":::{prf:theorem} Small\n:label: th-one\n\nIt is.\n:::", "---\n\n**Theorem 1.1 (Small)**\n\nIt is.\n\n---"),
        (":::{prf:lemma} Along $w_1$\n:label: le-one\n\nIt is.\n:::",
         "---\n\n**Lemma 1.1 (Along $w_1$)**\n\nIt is.\n\n---"),
        ("```{exercise} Big\n:label: ex-one\nDo.\n```", "---\n\n**Exercise 1.1 (Big)**\n\nDo.\n\n---"),
        ("::::{dropdown} Proof\n:::{note}\nIn.\n:::\n::::",
         "<details>\n<summary><b>Proof</b></summary>\n\n---\n\n**Note**\n\nIn.\n\n---\n\n</details>"),
        ("::::{admonition} Proof\n:class: dropdown\n\nSo.\n::::",
         "<details>\n<summary><b>Proof</b></summary>\n\nSo.\n\n</details>"),
        ("```{note}\nA.\n```\n```{note}\nB.\n```", "---\n\n**Note**\n\nA.\n\n---\n\n**Note**\n\nB.\n\n---"),
    ],
)  # fmt: skip
def test_myst_becomes_plain_markdown(page: notebooks.Page, text: str, plain: str) -> None:
    assert page.cell(text) == plain


def test_a_solution_is_folded_from_cell_to_cell(page: notebooks.Page) -> None:
    summary = "<details>\n<summary><b>Solution to Exercise 1.1 (Big)</b></summary>"
    first = page.cell("Before.\n\n````{solution-start} ex-one\n:class: dropdown\n````\n\nOne.")
    assert first == f"Before.\n\n{summary}\n\nOne.\n\n</details>"
    assert page.cell("Two.") == f"{summary}\n\nTwo.\n\n</details>"
    assert page.cell("````{solution-end}\n````\n\nAfter.") == "After."
    assert page.cell("More.") == "More."


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("```{tabs}\n```", "the directive tabs"),
        ("{kbd}`x`", "the role kbd"),
        ("{eq}`eq-two`", "the label eq-two of eq, which the built pages do not have"),
        ("[x](nowhere)", "the label nowhere of link, which the built pages do not have"),
        ("{ref}`no-title`", "a reference without text to no-title, which has no title"),
        ("{cite}`three2022`", "a citation of three2022, which is not in the bibliography"),
        (":::{note}\nOpen.", "a block that opens with ::: and is not closed"),
    ],
)
def test_what_cannot_be_converted_is_refused_by_name(page: notebooks.Page, text: str, fault: str) -> None:
    message = f"book/part/page.md must have what a plain notebook can show; got {fault}"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        page.cell(text)


def test_captions_and_references_become_cells_and_folded_code_is_hidden(book: notebooks.Book) -> None:
    figure = {"mystnb": {"figure": {"name": "fig-one", "caption": "Of {cite:t}`one2020`."}}, "tags": ["hide-input"]}
    cells = [new_markdown_cell("# Title"), new_code_cell("1 + 1", metadata=figure), new_code_cell("2")]  # type: ignore[no-untyped-call]
    source = new_notebook(cells=cells)  # type: ignore[no-untyped-call]
    made = notebooks.convert_notebook(source, "book/part/page", book, "import x", "From here.")
    texts = [cell.source for cell in made.cells]
    assert texts[:6] == ["import x", "From here.", "# Title", "1 + 1", "**Fig. 1.3.** Of One [2020].", "2"]
    assert texts[6].startswith("## References\n\n* Ann One\\.")
    assert "Second" not in texts[6]
    assert [cell.metadata.get("jupyter") for cell in made.cells if cell.cell_type == "code"] == [
        None, {"source_hidden": True}, None,
    ]  # fmt: skip


@pytest.fixture(scope="session")
def made(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the notebooks of the real book."""
    if not (ROOT / ".git").exists():
        pytest.skip("this is no git checkout, and a notebook names its commit")
    folder = tmp_path_factory.mktemp("notebooks")
    notebooks.make(built, folder)
    return folder


def read(folder: Path, page: str) -> NotebookNode:
    notebook: NotebookNode = nbformat.read(folder / f"{page}.ipynb", 4)  # type: ignore[no-untyped-call]
    return notebook


def code(notebook: NotebookNode) -> list[str]:
    return [cell.source for cell in notebook.cells if cell.cell_type == "code"]


@pytest.mark.parametrize("page", notebooks.sources())
def test_each_page_with_code_is_a_plain_notebook_with_its_code(made: Path, page: str) -> None:
    notebook = read(made, page)
    assert notebook.metadata.kernelspec.name == "python3"
    assert code(notebook)[1:] == code(jupytext.read(ROOT / f"{page}.md"))
    assert not [cell for cell in notebook.cells if cell.cell_type == "code" and cell.outputs]
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            assert not re.search(r"\{[\w:-]+\}`|^(:::|```)\s*\{|^\([\w-]+\)=$|\]\([^)]*\.md", cell.source, re.MULTILINE)


@pytest.mark.parametrize("page", notebooks.sources())
def test_each_link_of_a_notebook_leads_to_a_place_on_a_built_page(built: Path, made: Path, page: str) -> None:
    base, pages = f"{address.read(ROOT)[0].pages}/", notebooks.built_pages(built)
    text = "\n".join(cell.source for cell in read(made, page).cells if cell.cell_type == "markdown")
    links = [link.removeprefix(base) for link in re.findall(r"\]\((https://[^)\s]+)\)", text) if link.startswith(base)]
    assert links
    for link in filter(None, links):
        path, _, anchor = link.partition("#")
        assert path.removesuffix(".html") in pages, link
        assert not anchor or pages[path.removesuffix(".html")].find(id=anchor), link


@pytest.fixture(scope="session")
def hosted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with all that our library needs, by a path entry, but without the library."""
    folder = tmp_path_factory.mktemp("hosted")
    venv.create(folder, with_pip=False, symlinks=sys.platform != "win32")
    paths = {"base": str(folder), "platbase": str(folder)}
    entry = Path(sysconfig.get_path("purelib", "venv", paths)) / "dependencies.pth"
    entry.write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    return python_of(folder)


@pytest.mark.slow
def test_a_notebook_alone_installs_its_commit_and_prints_what_the_book_prints(
    made: Path, hosted: Path, tmp_path: Path
) -> None:
    page, offline = "book/quickstart", {"PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0"}  # 0: without isolation
    executed = colab.execute(made / f"{page}.ipynb", hosted, **offline)
    commit = notebooks.git("rev-parse", "--short=9", "HEAD").strip()
    first = colab.printed(executed.cells[0])
    assert f"is now installed from commit {commit}." in first
    assert re.search(r"^Unchanged: numpy [\d.]+, scipy [\d.]+, torch [\d.+a-z]+\.$", first, re.MULTILINE)
    assert colab.differing(page, executed) == []

    again = read(made, page)
    again.cells = again.cells[:1]
    nbformat.write(again, tmp_path / "again.ipynb")  # type: ignore[no-untyped-call]
    second = colab.execute(tmp_path / "again.ipynb", hosted, PATH="")  # without git, which pip would need
    assert "was already installed." in colab.printed(second.cells[0])


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("a 1.000 b", "c 1.001 d", True),  # one unit of the last digit
        ("1.000", "1.002", False),
        ("143.4", "143.7", False),
        ("12345", "12346", True),
        ("1.23e-08", "1.24e-08", True),
        ("1.23e-08", "1.23e-07", False),
        ("\N{MINUS SIGN}2", "-2", True),
        ("commit 28e4567", "commit 28e4567", True),
        ("1 2", "1", False),
        ("text", "other", True),
    ],
)
def test_numbers_agree_to_a_tenth_of_a_per_cent_or_to_their_last_digit(one: str, other: str, same: bool) -> None:
    assert colab.agree(one, other) is same
