"""A release is what its tag says: the version, a dated entry of the changelog, and all that readers download."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from zipfile import ZipFile

import lock
import pytest
import release
import yaml

ROOT = Path(__file__).resolve().parents[2]
VERSION = lock.project()["version"]
CHANGELOG = (
    f"# Changelog\n\n## {VERSION}, 2027-01-31\n\n* New: a chapter.\n* A number.\n\n## 0.0.1, 2026-01-01\n\n* Old.\n"
)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with a changelog ready for a release, and all that was made of it."""
    for name in ("pyproject.toml", "requirements.lock"):
        shutil.copyfile(ROOT / name, tmp_path / name)
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG)
    (tmp_path / "_build" / "notebooks" / "book").mkdir(parents=True)
    for name in ("phases-of-attention.pdf", "phases-of-attention.zip", "notebooks/book/index.ipynb"):
        (tmp_path / "_build" / name).write_text(name)
    return tmp_path


def test_a_release_has_pdf_pages_notebooks_and_versions(repository: Path) -> None:
    made = {path.name: path for path in release.gather(repository, f"v{VERSION}")}
    assert sorted(made) == [
        "notes.md", "phases-of-attention-notebooks.zip", "phases-of-attention.pdf", "phases-of-attention.zip",
        "requirements.lock",
    ]  # fmt: skip
    with ZipFile(made["phases-of-attention-notebooks.zip"]) as archive:
        assert "book/index.ipynb" in archive.namelist()
    assert made["requirements.lock"].read_text() == (ROOT / "requirements.lock").read_text()


def test_its_notes_are_the_entry_of_the_changelog_and_the_versions_of_the_lock(repository: Path) -> None:
    release.gather(repository, f"v{VERSION}")
    notes = (repository / "_build" / "release" / "notes.md").read_text()
    assert notes.startswith("* New: a chapter.\n* A number.\n\n| computed with | |\n")
    assert "Old" not in notes
    for name in ("numpy", "scipy", "torch"):
        assert f"| {name} | {lock.read_lock()[name]} |" in notes


def test_what_a_second_release_has_is_not_mixed_with_the_first(repository: Path) -> None:
    release.gather(repository, f"v{VERSION}")
    (repository / "_build" / "release" / "old.pdf").write_text("old")
    assert "old.pdf" not in [path.name for path in release.gather(repository, f"v{VERSION}")]


@pytest.mark.parametrize(
    ("tag", "changelog", "message"),
    [
        (VERSION, CHANGELOG, f"the tag must be v{VERSION}, as pyproject.toml says; got {VERSION}"),
        ("v9.9", CHANGELOG, f"the tag must be v{VERSION}, as pyproject.toml says; got v9.9"),
        (f"v{VERSION}", "# Changelog\n", f"CHANGELOG.md must have an entry for {VERSION}; it has none"),
        (f"v{VERSION}", f"## {VERSION}, 2027-01-31\n\n## 0.0.1, x\n", f"must have an entry for {VERSION}; it has none"),
        (f"v{VERSION}", CHANGELOG.replace("2027-01-31", "soon"), "must have a date (2027-01-31); got soon"),
    ],
)  # fmt: skip
def test_a_tag_that_does_not_fit_is_refused(repository: Path, tag: str, changelog: str, message: str) -> None:
    (repository / "CHANGELOG.md").write_text(changelog)
    with pytest.raises(ValueError, match=re.escape(message)):
        release.entry(repository, tag)


@pytest.mark.parametrize("name", ["phases-of-attention.pdf", "phases-of-attention.zip", "notebooks"])
def test_what_was_not_made_is_named(repository: Path, name: str) -> None:
    (repository / "_build" / name).rename(repository / "elsewhere")
    with pytest.raises(ValueError, match=rf"{name} must have been made .* it is missing"):
        release.gather(repository, f"v{VERSION}")


def test_the_workflow_checks_the_tag_first_and_publishes_what_was_gathered(repository: Path) -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8"))
    steps = [step["run"] for step in workflow["jobs"]["release"]["steps"] if "run" in step]
    assert steps[:3] == [
        'python tools/release.py "$GITHUB_REF_NAME" --check', "bash .ci/run", 'make release TAG="$GITHUB_REF_NAME"'
    ]  # fmt: skip
    patterns = re.findall(r"_build/release/(\S+)", steps[3])
    release.gather(repository, f"v{VERSION}")
    published = {path.name for pattern in patterns for path in (repository / "_build" / "release").glob(pattern)}
    assert published == {path.name for path in (repository / "_build" / "release").iterdir()}
