"""Write each page with code as a plain notebook (.ipynb), for Colab and for readers who have no MyST.

Directives, roles, citations and references become ordinary Markdown. Numbers of equations, figures, theorems and
exercises are read off the built pages, so the book must be built first. The first cell installs the library from the
commit that the notebook was made from.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from posixpath import normpath
from typing import TYPE_CHECKING, Any

import address
import jupytext
import nbformat
import yaml
from bs4 import BeautifulSoup, Tag
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from pybtex.database import parse_file

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "book" / "_extensions"))
from author_year import AuthorYearStyle  # noqa: E402  # the style of the pages' own list of references

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nbformat import NotebookNode

HTML, NOTEBOOKS = ROOT / "_build" / "html", ROOT / "_build" / "notebooks"
SOURCE = "ATTENTION_PHASES_SOURCE"  # the variable that names another git repository than the public one
BOXES = {"note": "Note", "tip": "Tip", "hint": "Hint", "warning": "Warning", "important": "Important"}

INSTALL = '''\
# Installs the library of this notebook where it is missing; numpy, scipy and torch stay as they are.
import importlib.util
import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version


def versions(*packages):
    """Name and version of each package that is installed."""
    found = {{}}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            pass
    return found


kept = versions("numpy", "scipy", "torch")
if importlib.util.find_spec("attention_phases"):
    said = "was already installed"
else:
    source = os.environ.get("{variable}", "{repository}")
    wanted = [f"git+{{source}}@{commit}", *map("==".join, kept.items())]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", *wanted]
    result = subprocess.run(pip, capture_output=True, text=True)
    if result.returncode:
        raise RuntimeError(f"attention_phases could not be installed from {{source}}.\\n{{result.stderr}}")
    importlib.invalidate_caches()
    said = "is now installed from commit {short}"
assert kept == versions(*kept)
print(f"attention_phases {{version('attention_phases')}} {{said}}.")
print("Unchanged:", ", ".join(map(" ".join, kept.items())) + ".")
'''


@dataclass(frozen=True)
class Target:
    """What a reference can lead to: the page, the anchor on it, and how a reference without a text of its own reads."""

    page: str
    anchor: str
    text: str


def targets(pages: dict[str, BeautifulSoup]) -> dict[str, Target]:
    """All that the built pages number or name, by label; `pages` are parsed, by path without ending."""
    found = {}
    for page, soup in pages.items():
        for element in soup.select("article [id]"):
            anchor = str(element["id"])
            found[anchor.removeprefix("equation-")] = Target(page, anchor, _reads(element))
    return found


def _reads(element: Tag) -> str:
    """What a reference to an element reads: its number, or its title; nothing where it has neither.

    A formula in it stands between dollars, as plain Markdown has it.
    """
    for decoration in element.select(".headerlink, .section-number"):
        decoration.extract()
    classes = element.get_attribute_list("class")
    if element.name == "div" and "math" in classes:
        number = element.select_one(".eqno")
    elif element.name in ("figure", "table"):
        number = element.select_one(".caption-number")
    elif element.name == "details":
        number = element.select_one("summary")
    elif "admonition" in classes:
        number = element.select_one(".admonition-title")
    elif element.name == "section":
        number = element.select_one("h1, h2, h3, h4")
    elif re.fullmatch("h[1-4]", element.name):
        number = element
    elif element.name == "span" and not element.get_text():  # a label before a heading
        labelled = element.find_next_sibling()
        return _reads(labelled) if isinstance(labelled, Tag) else ""
    else:
        return ""
    text = re.sub(r"\s+", " ", number.get_text()).strip() if number else ""
    return re.sub(r"\\\((.*?)\\\)", r"$\1$", text)


class Book:
    """What the conversion of a page must know of the book: its address, the targets of references, the bibliography."""

    def __init__(self, base: str, targets: dict[str, Target], bibliography: Path) -> None:
        """`base` is the address of the rendered book, without a slash at its end."""
        self.base, self.targets = base, targets
        data = parse_file(str(bibliography), bib_format="bibtex")
        formatted = AuthorYearStyle().format_bibliography(data)
        self.references = {entry.key.lower(): (entry.label, entry.text.render_as("markdown")) for entry in formatted}

    def citations(self, text: str) -> list[str]:
        """The full references of all that a text in MyST cites, in the order of the list of references."""
        cited = {
            key.strip().lower() for keys in re.findall(r"\{cite(?::t)?\}`([^`]+)`", text) for key in keys.split(",")
        }
        return [entry for key, (_, entry) in self.references.items() if key in cited]


FENCE = re.compile(r"(?P<fence>`{3,}|:{3,})(?:\{(?P<name>[\w:-]+)\} *(?P<argument>.*)|(?P<language>[\w-]*))$")
INLINE = re.compile(
    r"\{(?P<role>[\w:-]+)\}`(?P<content>[^`]+)`"
    r"|\$\$(?P<formula>.+?)\$\$(?: *\((?P<label>[\w:-]+)\))?"
    r"|(?P<kept>(?P<ticks>`+)(?!`).+?(?<!`)(?P=ticks)(?!`)|(?<!\\)\$[^$]+\$)"
    r"|(?<!!)\[(?P<text>(?:`[^`]*`|[^\]`])*)\]\((?P<link>[^)\s]+)\)",
    re.DOTALL,
)


SOLUTION = re.compile(r"^(`{3,}|:{3,})\{solution-(start|end)\} *(.*)\n(?:.*\n)*?\1 *$\n?", re.MULTILINE)


class Page:
    """Turns the MyST Markdown of one page, cell by cell from its first to its last, into plain Markdown."""

    def __init__(self, book: Book, page: str) -> None:
        """`page` is its path without ending."""
        self.book, self.page = book, page
        self.solution = ""  # the exercise whose solution goes on, from one cell to another

    def cell(self, text: str) -> str:
        """Return the text of the next cell as plain Markdown. Solutions are folded."""
        out, end = [], 0
        for mark in SOLUTION.finditer(text):
            out.append(self._folded(text[end : mark.start()]))
            self.solution = self._named(mark[3], "solution").text if mark[2] == "start" else ""
            end = mark.end()
        out.append(self._folded(text[end:]))
        return re.sub(r"^---\n\n(?=---$)", "", "\n\n".join(filter(None, out)), flags=re.MULTILINE)

    def _folded(self, text: str) -> str:
        content = self._blocks(text)
        return _details(f"Solution to {self.solution}", content) if self.solution and content else content

    def _fault(self, what: str) -> ValueError:
        return ValueError(f"{self.page}.md must have what a plain notebook can show; got {what}")

    def _blocks(self, text: str) -> str:
        """Convert directives and what stands between them."""
        out: list[str] = []
        plain: list[str] = []
        lines = iter(text.splitlines())
        for line in lines:
            opened = FENCE.match(line)
            if opened is None:
                plain.append(line)
                continue
            out.append(self._prose("\n".join(plain)))
            plain = []
            body = list(self._until(lines, opened["fence"]))
            out.append(self._directive(opened, body) if opened["name"] else "\n".join([line, *body, opened["fence"]]))
        out.append(self._prose("\n".join(plain)))
        return "\n\n".join(block.strip() for block in out if block.strip())

    def _until(self, lines: Iterator[str], fence: str) -> Iterator[str]:
        """The lines up to the one that closes the fence."""
        for line in lines:
            if re.fullmatch(rf"{fence[0]}{{{len(fence)},}} *", line):
                return
            yield line
        raise self._fault(f"a block that opens with {fence} and is not closed")

    def _directive(self, opened: re.Match[str], body: list[str]) -> str:
        name, argument = opened["name"], self._inline(opened["argument"].strip())
        options = {}
        while body and (option := re.match(r":([\w-]+): *(.*)", body[0])):
            options[option[1]] = option[2]
            del body[0]
        text = "\n".join(body).strip()
        if name == "math":
            return self._display(text, options.get("label"))
        content = self._blocks(text)
        if name == "dropdown" or "dropdown" in options.get("class", ""):
            return _details(argument or BOXES.get(name, ""), content)
        if name in {"admonition", *BOXES}:
            title = argument if name == "admonition" else BOXES[name]
        elif name.startswith("prf:") or name == "exercise":
            title = self._named(options.get("label", ""), name).text
        elif name == "table":
            return f"**{argument}**\n\n{content}" if argument else content
        else:
            raise self._fault(f"the directive {name}")
        return f"---\n\n**{title}**\n\n{content}\n\n---"

    def _prose(self, text: str) -> str:
        """Convert what is no directive. Labels of headings go: links lead to the pages."""
        return self._inline(re.sub(r"^(\([\w:-]+\)=|% .*)(?:\n|\Z)", "", text, flags=re.MULTILINE))

    def _display(self, formula: str, label: str | None) -> str:
        number = f"\n\\tag{{{self._named(label, 'eq').text.strip('()')}}}" if label else ""
        return f"$$\n{formula}{number}\n$$"

    def _inline(self, text: str) -> str:
        return INLINE.sub(self._replace, text)

    def _replace(self, found: re.Match[str]) -> str:
        if found["kept"]:
            return found[0]
        if found["formula"]:
            return self._display(found["formula"].strip(), found["label"])
        if found["role"]:
            return self._role(found["role"], found["content"])
        return f"[{self._inline(found['text'])}]({self._link(found['link'])})"

    def _role(self, role: str, content: str) -> str:
        if role in ("cite", "cite:t"):
            return self._cite([key.strip().lower() for key in content.split(",")], in_text=role == "cite:t")
        if role == "term":
            return re.sub(r" *<.*>$", "", content)
        if role not in ("eq", "numref", "ref", "prf:ref"):
            raise self._fault(f"the role {role}")
        titled = re.fullmatch(r"(.*?) *<(.+)>", content, re.DOTALL)
        target = self._named(titled[2] if titled else content, role)
        text = titled[1] if titled else target.text
        if not text:
            raise self._fault(f"a reference without text to {content}, which has no title")
        if role == "prf:ref":
            text = text.partition(" (")[0]
        return f"[{text}]({self._to(target)})"

    def _cite(self, keys: list[str], *, in_text: bool) -> str:
        unknown = [key for key in keys if key not in self.book.references]
        if unknown:
            raise self._fault(f"a citation of {unknown[0]}, which is not in the bibliography")
        labels = [self.book.references[key][0] for key in keys]
        if in_text:
            return ", ".join("{0} [{2}]".format(*label.rpartition(", ")) for label in labels)
        return f"[{'; '.join(labels)}]"

    def _named(self, label: str, role: str) -> Target:
        target = self.book.targets.get(label.strip().lower())
        if target is None:
            raise self._fault(f"the label {label} of {role}, which the built pages do not have")
        return target

    def _to(self, target: Target) -> str:
        return f"{self.book.base}/{target.page}.html#{target.anchor}"

    def _link(self, link: str) -> str:
        if re.match(r"https?://|mailto:", link):
            return link
        path, _, anchor = link.partition("#")
        if not path:
            return f"{self.book.base}/{self.page}.html#{anchor}"
        if not path.endswith(".md"):
            return self._to(self._named(path, "link"))
        page = normpath(str(PurePosixPath(self.page).parent / path)).removesuffix(".md")
        return f"{self.book.base}/{page}.html" + (f"#{anchor}" if anchor else "")


def _details(summary: str, content: str) -> str:
    return f"<details>\n<summary><b>{summary}</b></summary>\n\n{content}\n\n</details>"


def convert_notebook(source: NotebookNode, page: str, book: Book, install: str, origin: str) -> NotebookNode:
    """Return a page's notebook in plain Markdown, with a first cell that installs and a last one of references.

    Code that the page folds is hidden where the reader's program can do that. `origin` is a sentence that says what the
    notebook was made from.
    """
    cells = [new_code_cell(install), new_markdown_cell(origin)]  # type: ignore[no-untyped-call]
    text, cited = Page(book, page), []
    for cell in source.cells:
        if cell.cell_type == "markdown":
            cells.append(new_markdown_cell(text.cell(cell.source)))  # type: ignore[no-untyped-call]
            cited.append(cell.source)
            continue
        tags = cell.metadata.get("tags", [])
        metadata = {"jupyter": {"source_hidden": True}} if text.solution or "hide-input" in tags else {}
        cells.append(new_code_cell(cell.source, metadata=metadata))  # type: ignore[no-untyped-call]
        figure = cell.metadata.get("mystnb", {}).get("figure")
        if figure:
            number = book.targets[figure["name"]].text
            caption = text.cell(figure["caption"])
            cells.append(new_markdown_cell(f"**{number}.** {caption}"))  # type: ignore[no-untyped-call]
            cited.append(figure["caption"])
    references = book.citations("\n".join(cited))
    if references:
        entries = "\n".join(f"* {entry}" for entry in references)
        cells.append(new_markdown_cell(f"## References\n\n{entries}"))  # type: ignore[no-untyped-call]
    cells = [cell for cell in cells if cell.source]
    for index, cell in enumerate(cells):
        cell["id"] = f"cell-{index}"
    about = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    notebook: NotebookNode = new_notebook(cells=cells, metadata=about)  # type: ignore[no-untyped-call]
    nbformat.validate(notebook)
    return notebook


def install_cell(repository: str, commit: str) -> str:
    """Return the code that installs the library from a commit of a git repository."""
    return INSTALL.format(variable=SOURCE, repository=repository, commit=commit, short=commit[:9])


def git(*arguments: str) -> str:
    """Return what git says in this repository."""
    return subprocess.run(["git", "-C", str(ROOT), *arguments], check=True, capture_output=True, text=True).stdout


def sources() -> list[str]:
    """The pages with code, as paths without ending."""
    toc: dict[str, Any] = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    pages = [toc["root"], *(entry["file"] for part in toc["parts"] for entry in part["chapters"])]
    return [page for page in pages if "{code-cell}" in (ROOT / f"{page}.md").read_text(encoding="utf-8")]


def built_pages(html: Path) -> dict[str, BeautifulSoup]:
    """The pages of the built book, parsed, by path without ending."""
    return {
        path.relative_to(html).with_suffix("").as_posix(): BeautifulSoup(path.read_bytes(), "html.parser")
        for path in sorted((html / "book").rglob("*.html"))
    }


def make(html: Path, folder: Path) -> list[Path]:
    """Write the notebooks of all pages with code below `folder`, from the book that is built in `html`."""
    here, commit = address.read(ROOT)[0], git("rev-parse", "HEAD").strip()
    book = Book(here.pages, targets(built_pages(html)), ROOT / "book" / "appendix" / "references.bib")
    written = []
    for page in sources():
        origin = (
            f"This notebook is a page of [Phases of Attention]({here.pages}/), "
            f"[{page}]({here.pages}/{page}.html), at commit [{commit[:9]}]({here.repository}/tree/{commit}). "
            "Run the cell above first; the rest follows in order."
        )
        source = jupytext.read(ROOT / f"{page}.md")
        notebook = convert_notebook(source, page, book, install_cell(here.repository, commit), origin)
        path = folder / f"{page}.ipynb"
        path.parent.mkdir(parents=True, exist_ok=True)
        nbformat.write(notebook, path)  # type: ignore[no-untyped-call]
        written.append(path)
    return written


def main() -> None:
    """Write all notebooks to _build/notebooks."""
    if not HTML.is_dir():
        sys.exit("The book must be built first: make book")
    shutil.rmtree(NOTEBOOKS, ignore_errors=True)
    written = make(HTML, NOTEBOOKS)
    print(f"{len(written)} notebooks are in {NOTEBOOKS}")
    if git("status", "--porcelain"):
        print("There are changes that are not committed: the notebooks install the last commit, without them.")


if __name__ == "__main__":
    main()
