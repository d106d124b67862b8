"""The key in pyproject.toml and every mention of the project's address agree; one command changes them all."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from urllib.parse import quote, unquote

import address
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]


def mentions(root: Path) -> dict[str, set[str]]:
    """The addresses that the project's files give for the project, by where they stand."""
    wanted = address.read(root)[0]
    name = re.escape(wanted.name)
    pages = rf"https://[\w-]+\.github\.io{re.escape(wanted.pages.partition('.github.io')[2])}(?![\w.-])"
    texts = {path.relative_to(root).as_posix(): text for path, text in address.text_files(root).items()}
    configuration = yaml.safe_load(texts["_config.yml"])
    citation = yaml.safe_load(texts["CITATION.cff"])
    everything = "\n".join(text for name, text in texts.items() if name != "tests/house/test_address.py")
    return {
        "_config.yml: repository": {configuration["repository"]["url"]},
        "_config.yml: pages": {configuration["html"]["baseurl"].removesuffix("/")},
        "CITATION.cff: repository": {citation["repository-code"]},
        "CITATION.cff: pages": {citation["url"]},
        "README.md: repository": set(re.findall(rf"https://github\.com/[\w-]+/{name}", texts["README.md"])),
        "README.md: pages": set(re.findall(pages, texts["README.md"])),
        "README.md: folder": set(re.findall(r"^cd (.*)$", texts["README.md"], re.MULTILINE)),
        "anywhere: repository": set(re.findall(rf"https://github\.com/[\w-]+/{name}\b", everything)),
        "anywhere: pages": set(re.findall(pages, everything)),
        "hub links: repository": {unquote(link) for link in re.findall(r"git-pull\?repo=([^&\s]+)&", everything)},
        "hub links: folder": set(re.findall(r"&urlpath=lab%2Ftree%2F(.+?)%2F", everything)),
        "install cells: repository": set(re.findall(r"git\+(https://[^\s\"'@]+)", everything)),
    }


def assert_agreement(root: Path) -> None:
    wanted, written = address.read(root)
    assert written == wanted
    for where, found in mentions(root).items():
        expected = {"pages": wanted.pages, "folder": wanted.name}.get(where.rpartition(" ")[2], wanted.repository)
        assert found <= {expected}, where
        assert found or where.startswith("install"), where


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="this is no git checkout")
def test_all_addresses_agree() -> None:
    assert_agreement(ROOT)


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="this is no git checkout")
@pytest.mark.parametrize("slug", ["ada-l/attention.book", "ada-l/ada-l.github.io"])
def test_one_command_changes_them_all(tmp_path: Path, slug: str) -> None:
    _, old = address.read(ROOT)
    for path in address.text_files(ROOT):
        copy = tmp_path / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    settings = tmp_path / "pyproject.toml"
    key = f'[tool.attention-phases]\nrepository = "{old.repository}"'
    text = settings.read_text(encoding="utf-8")
    assert key in text
    settings.write_text(text.replace(key, key.replace(old.slug, slug)), encoding="utf-8")

    with pytest.raises(AssertionError):
        assert_agreement(tmp_path)
    address.main(tmp_path)
    assert_agreement(tmp_path)
    for path, text in address.text_files(tmp_path).items():
        assert f"/{old.slug}" not in text, path
        assert f"%2F{quote(old.slug, '')}" not in text, path
        assert old.pages not in text, path


@pytest.mark.parametrize(
    "wrong",
    ["", "github.com/a/b", "https://github.com/a", "https://github.com/a/b.git", "https://github.com/a/b.GIT",
     "https://github.com/a/b/c", "https://github.com/a/.", "https://github.com/a/..", "https://github.com/_/b",
     "https://github.com/-a/b", "https://github.com/a-/b", "https://github.com/a--b/c", "https://github.com/ä/b",
     f"https://github.com/{'a' * 40}/b", "https://github.com/a/b\n", 3, None, ["https://github.com/a/b"]],
)  # fmt: skip
def test_what_is_no_repository_is_refused(wrong: object) -> None:
    message = f"repository must be like https://github.com/owner/name; got {wrong}"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        address.parse(wrong)


@pytest.mark.parametrize(
    ("repository", "pages"),
    [
        ("https://github.com/ada-l/attention.book", "https://ada-l.github.io/attention.book"),
        ("https://github.com/ada-l/ada-l.github.io", "https://ada-l.github.io"),
        ("https://github.com/Ada/ada.github.io", "https://Ada.github.io"),
        ("https://github.com/ada/bob.github.io", "https://ada.github.io/bob.github.io"),
        ("https://github.com/a/.github", "https://a.github.io/.github"),
    ],
)
def test_the_pages_are_a_folder_of_the_owners_site_unless_they_are_that_site(repository: str, pages: str) -> None:
    assert address.parse(repository).pages == pages


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("", "pyproject.toml must have the key repository in [tool.attention-phases]; it has none"),
        ("tool = 3", "pyproject.toml must have the key repository in [tool.attention-phases]; it has none"),
        (
            '[tool.attention-phases]\nrepository = "https://github.com/a/b"',
            "pyproject.toml must have the key Repository in [project.urls]; it has none",
        ),
        ("[tool.attention-phases]\nrepository = 3", "repository must be like https://github.com/owner/name; got 3"),
        (
            '[tool.attention-phases]\nrepository = "https://github.com/a/b"\n'
            '[project.urls]\nRepository = "https://github.com/a/c"',
            "must be a git checkout, and git be installed, to list its files",
        ),
    ],
)
def test_what_is_missing_is_named(tmp_path: Path, settings: str, message: str) -> None:
    (tmp_path / "pyproject.toml").write_text(settings, encoding="utf-8")
    with pytest.raises(ValueError, match=re.escape(message)):
        address.main(tmp_path)
