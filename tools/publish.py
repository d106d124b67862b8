"""Push what a folder holds as the next commit of a branch: publish.py FOLDER BRANCH [REMOTE].

The branch has a history of its own, so that a copy of it can be brought up to date, as nbgitpuller does for students
whose notebooks have changed. The files and the index of this checkout stay as they are.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path


def publish(repository: Path, folder: Path, branch: str, remote: str) -> str:
    """Push the files of `folder` to the branch of a remote repository, unless it has them; return the commit's name."""
    if not folder.is_dir() or not any(path.is_file() for path in folder.rglob("*")):
        raise ValueError(f"folder must hold files to publish; got {folder}")

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(repository), *arguments]
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout.strip()

    with tempfile.TemporaryDirectory() as scratch:
        identity = {
            f"GIT_{role}_{what}": "phases-of-attention"
            for role in ("AUTHOR", "COMMITTER")
            for what in ("NAME", "EMAIL")
        }
        environment = os.environ | identity | {"GIT_INDEX_FILE": str(Path(scratch) / "index")}
        git("--work-tree", str(folder.resolve()), "add", "--all", "--force", ".")
        tree, last = git("write-tree"), git("ls-remote", remote, f"refs/heads/{branch}").partition("\t")[0]
        if last:
            git("fetch", "--quiet", "--depth", "1", remote, last)
            if git("rev-parse", f"{last}^{{tree}}") == tree:
                return last
        parents = ["-p", last] if last else []
        commit = git("commit-tree", tree, *parents, "-m", f"Made from {git('rev-parse', 'HEAD')}")
        git("push", remote, f"{commit}:refs/heads/{branch}")
    return commit


if __name__ == "__main__":
    try:
        print(publish(Path.cwd(), Path(sys.argv[1]), sys.argv[2], *(sys.argv[3:] or ["origin"])))
    except (ValueError, IndexError) as error:
        sys.exit(f"{error}\n{__doc__}")
