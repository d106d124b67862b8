"""The key in pyproject.toml and every mention of the project's address agree; one command changes them all."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import address
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]


def mentions(root: Path) -> dict[str, set[str]]:
    """The addresses that the project's files give for the project, by where they stand."""
    name = re.escape(address.read(root)[0].slug.partition("/")[2])
    texts = {path.relative_to(root).as_posix(): text for path, text in address.text_files(root).items()}
    configuration = yaml.safe_load(texts["_config.yml"])
    citation = yaml.safe_load(texts["CITATION.cff"])
    everything = "\n".join(texts.values())
    return {
        "_config.yml: repository": {configuration["repository"]["url"]},
        "_config.yml: pages": {configuration["html"]["baseurl"].removesuffix("/")},
        "CITATION.cff: repository": {citation["repository-code"]},
        "CITATION.cff: pages": {citation["url"]},
        "README.md: repository": set(re.findall(rf"https://github\.com/[\w-]+/{name}", texts["README.md"])),
        "README.md: pages": set(re.findall(rf"https://[\w-]+\.github\.io/{name}", texts["README.md"])),
        "anywhere: repository": set(re.findall(rf"https://github\.com/[\w-]+/{name}\b", everything)),
        "anywhere: pages": set(re.findall(rf"https://[\w-]+\.github\.io/{name}\b", everything)),
        "install cells: repository": set(re.findall(r"git\+(https://[^\s\"'@]+)", everything)),
    }


def assert_agreement(root: Path) -> None:
    wanted, written = address.read(root)
    assert written == wanted
    for where, found in mentions(root).items():
        expected = wanted.pages if where.endswith("pages") else wanted.repository
        assert found <= {expected}, where
        assert found or where.startswith("install"), where


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="this is no git checkout")
def test_all_addresses_agree() -> None:
    assert_agreement(ROOT)


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="this is no git checkout")
def test_one_command_changes_them_all(tmp_path: Path) -> None:
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
    settings.write_text(text.replace(key, key.replace(old.slug, "ada-l/attention.book")), encoding="utf-8")

    with pytest.raises(AssertionError):
        assert_agreement(tmp_path)
    address.main(tmp_path)
    assert_agreement(tmp_path)
    for path, text in address.text_files(tmp_path).items():
        assert f"/{old.slug}" not in text, path
        assert old.pages not in text, path


@pytest.mark.parametrize(
    "wrong", ["", "github.com/a/b", "https://github.com/a", "https://github.com/a/b.git", "https://github.com/a/b/c"]
)
def test_what_is_no_repository_is_refused(wrong: str) -> None:
    message = f"repository must be like https://github.com/owner/name; got {wrong}"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        address.parse(wrong)
