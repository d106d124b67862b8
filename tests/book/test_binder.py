"""What Binder is given: the addresses of its buttons, the list of packages, the last step of its build."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from typing import Any

import binder
import notebooks
import pytest
from environment import python_of
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

ROOT = binder.ROOT
BUTTON = '<a href="https://mybinder.org/v2/gh/a/b/main?urlpath={}">Binder</a>'


@pytest.mark.parametrize("page", notebooks.sources())
def test_the_button_of_a_page_opens_its_source_in_jupyterlab(built: Path, page: str) -> None:
    assert binder.url_path(built, page) == f"lab/tree/{page}.md"
    assert (ROOT / f"{page}.md").is_file()


def test_a_page_must_have_one_address_of_binder(tmp_path: Path) -> None:
    for number, links in enumerate([[], ["lab/tree/a.md", "lab/tree/b.md"]]):
        page = tmp_path / f"{number}.html"
        page.write_text("".join(map(BUTTON.format, links)), encoding="utf-8")
        with pytest.raises(ValueError, match=rf"^{number}\.html must have one address of Binder; got \["):
            binder.url_path(tmp_path, str(number))
    page.write_text(BUTTON.format("lab/tree/a.md") * 2, encoding="utf-8")
    assert binder.url_path(tmp_path, "1") == "lab/tree/a.md"


def test_pip_takes_the_list_of_conda_by_its_own_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binder, "ROOT", tmp_path)
    file = tmp_path / "environment.yml"
    file.write_text("dependencies: [python=3.12, pip, 'numpy>=2,<3', 'pytorch-cpu>=2.3,<3', 'jupyterlab-myst>=2,<3']")
    assert binder.requirements() == ["numpy>=2,<3", "torch>=2.3,<3", "jupyterlab-myst>=2,<3"]
    file.write_text("dependencies: [numpy]")
    with pytest.raises(ValueError, match=r"^environment\.yml must give each package a range .*; got numpy$"):
        binder.requirements()


def test_the_book_states_the_size_of_the_packages_in_one_place() -> None:
    assert 0.5 < binder.stated_size() < 4


def ran(*outputs: Any, count: int | None = 1) -> dict[str, Any]:
    """A notebook of one cell that has run."""
    cells = [new_markdown_cell("# T"), new_code_cell("a()\nb()", execution_count=count, outputs=list(outputs))]  # type: ignore[no-untyped-call]
    return dict(new_notebook(cells=cells))  # type: ignore[no-untyped-call]


def test_a_run_without_errors_and_warnings_is_as_it_should_be() -> None:
    assert binder.unlike_a_run(ran(new_output("stream", name="stdout", text="1"))) == []  # type: ignore[no-untyped-call]


@pytest.mark.parametrize(
    ("notebook", "fault"),
    [
        (ran(count=None), "has not run"),
        (ran(new_output("error", ename="ValueError", evalue="no", traceback=[])), "fails: ValueError: no"),  # type: ignore[no-untyped-call]
        (ran(new_output("stream", name="stderr", text="careful")), "warns: careful"),  # type: ignore[no-untyped-call]
    ],
)
def test_what_a_reader_should_not_see_after_a_run_is_named(notebook: dict[str, Any], fault: str) -> None:
    assert binder.unlike_a_run(notebook) == [f"the cell that begins 'a()' {fault}"]


@pytest.mark.skipif(sys.platform == "win32", reason="Binder runs on Linux")
def test_the_last_step_installs_the_library_and_lets_chapters_open_as_notebooks(tmp_path: Path) -> None:
    folder, programs, said = tmp_path / "environment", tmp_path / "programs", tmp_path / "said"
    venv.create(folder, with_pip=False)
    paths = {"base": str(folder), "platbase": str(folder)}
    entry = Path(sysconfig.get_path("purelib", "venv", paths)) / "dependencies.pth"
    entry.write_text(sysconfig.get_path("purelib"), encoding="utf-8")  # pip, hatchling and jupytext
    programs.mkdir()
    (programs / "jupytext-config").symlink_to(Path(sysconfig.get_path("scripts")) / "jupytext-config")
    jupyter = programs / "jupyter"  # stands in for JupyterLab's, which `make binder` has
    jupyter.write_text(f'#!/bin/sh\necho "$@" > "{said}"\n', encoding="utf-8")
    jupyter.chmod(0o755)
    clone = tmp_path / "clone"
    clone.mkdir()
    for name in ("postBuild", "pyproject.toml", "README.md", "LICENSE", "lib"):
        source = ROOT / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, clone / name if source.is_dir() else clone)
    path = os.pathsep.join([str(python_of(folder).parent), str(programs), "/usr/bin", "/bin"])
    offline = {"PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0"}  # 0: without isolation
    subprocess.run(["./postBuild"], cwd=clone, env={"HOME": str(tmp_path), "PATH": path, **offline}, check=True)

    settings = folder / "etc" / "jupyter" / "labconfig" / "default_setting_overrides.json"
    viewers = json.loads(settings.read_text(encoding="utf-8"))["@jupyterlab/docmanager-extension:plugin"]
    assert viewers == {"defaultViewers": {"markdown": "Jupytext Notebook"}}
    assert said.read_text(encoding="utf-8").startswith("labextension disable ")
    where = "import attention_phases; print(attention_phases.__file__)"
    found = subprocess.run([python_of(folder), "-c", where], check=True, capture_output=True, text=True, env={})
    assert Path(found.stdout.strip()).is_relative_to(clone)
