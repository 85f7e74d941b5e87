"""`make release`: builds the sdist and the wheel, checks them, and tags the version. Standard library only.

It refuses a tree with uncommitted changes, a version that has a tag, and a version without a section in CHANGELOG.md.
The tag is the last step, so a release that fails its checks leaves nothing behind but dist/. Nothing is uploaded.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOOLS = Path(".cache/release/bin")  # requirements/release.txt
_VERSION = re.compile(r'^__version__ = "([^"]+)"$', re.MULTILINE)

Command = Sequence[Path | str]


class ReleaseError(Exception):
    """A check of the built files failed."""


def version(root: Path) -> str:
    """Return the version that the build will use."""
    found = _VERSION.search((root / "src/breakloop/_version.py").read_text(encoding="utf-8"))
    if found is None:
        raise ReleaseError("src/breakloop/_version.py: has no __version__")
    return found[1]


def notes(changelog: str, number: str) -> str:
    """Return the section of a version in the changelog, or "" if it has none or an empty one."""
    heading = rf"^## \[{re.escape(number)}\] - \d{{4}}-\d\d-\d\d$"
    found = re.search(rf"{heading}\n(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL)
    return found[1].strip() if found else ""


def refuse(root: Path, number: str) -> None:
    """Raise `ReleaseError` with every reason why this tree cannot be released."""
    found = _refusals(root, number)
    if found:
        raise ReleaseError("\n".join(found))


def _refusals(root: Path, number: str) -> list[str]:
    if _git(root, "rev-parse", "--is-inside-work-tree").returncode:
        return ["this is not a git repository: a release is made from a clone"]
    found = []
    changed = _git(root, "status", "--porcelain").stdout.splitlines()
    if changed:
        shown = ", ".join(line[3:] for line in changed[:5])
        found.append(f"the tree has uncommitted changes ({shown}): commit or remove them")
    if _git(root, "rev-parse", "--quiet", "--verify", f"refs/tags/v{number}").returncode == 0:
        found.append(f"the tag v{number} exists: raise the version in src/breakloop/_version.py")
    if not notes((root / "CHANGELOG.md").read_text(encoding="utf-8"), number):
        found.append(f'CHANGELOG.md has no section "## [{number}] - YYYY-MM-DD" with the changes: move them there')
    return found


def build_and_check(root: Path, number: str) -> None:
    """Build into dist/, check the files, and run what they install. Raises `ReleaseError`."""
    dist = root / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    # The wheel is built from the sdist, which proves that the sdist is complete.
    _run([TOOLS / "python", "-m", "build", "--no-isolation", "--outdir", dist], root)
    wheel, sdist = dist / f"breakloop-{number}-py3-none-any.whl", dist / f"breakloop-{number}.tar.gz"
    if sorted(dist.iterdir()) != [wheel, sdist]:
        raise ReleaseError(f"dist/ contains {sorted(path.name for path in dist.iterdir())}")
    _run([TOOLS / "twine", "check", "--strict", wheel, sdist], root)
    _run([TOOLS / "check-wheel-contents", wheel], root)
    with tempfile.TemporaryDirectory() as folder:
        _try_out(wheel, number, Path(folder), (root / TOOLS).absolute())


def _try_out(wheel: Path, number: str, folder: Path, tools: Path) -> None:
    """Install the library and then the server into an empty environment, and run them; run the wheel with pipx."""
    venv.create(folder / "env", with_pip=True)
    programs = folder / "env" / ("Scripts" if os.name == "nt" else "bin")
    pip: Command = [programs / "python", "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    _run([*pip, wheel], folder)
    _expect([programs / "breakloop", "--version"], folder, f"breakloop {number}")
    _run([programs / "python", "-c", "from breakloop import Guard; Guard().step([('f', {})], ['x'])"], folder)
    _run([*pip, f"{wheel}[server]"], folder)
    _expect([programs / "breakloop", "demo", "--plain"], folder, "BLOCKED")
    run: Command = [tools / "pipx", "run", "--quiet", "--no-cache", "--spec", wheel, "breakloop", "--version"]
    _expect(run, folder, f"breakloop {number}", PIPX_HOME=str(folder / "pipx"), PIPX_DEFAULT_PYTHON=sys.executable)


def main(arguments: Sequence[str], root: Path = ROOT, check: Callable[[Path, str], None] = build_and_check) -> int:
    """Run a release. Returns 0, 1 if the tree is refused or a check fails, or 3 for wrong usage (by `argparse`)."""
    parser = argparse.ArgumentParser(prog="make release", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--dry-run", action="store_true", help="do everything but the tag")
    dry_run = parser.parse_args(arguments).dry_run
    try:
        number = version(root)
        refuse(root, number)
        check(root, number)
    except ReleaseError as error:
        for line in str(error).splitlines():
            print(f"release: {line}", file=sys.stderr)
        return 1
    if dry_run:
        print(f"release: dist/ is ready; without --dry-run, the tag v{number} would be created")
        return 0
    text = notes((root / "CHANGELOG.md").read_text(encoding="utf-8"), number)
    tagged = _git(
        root, "tag", "--annotate", "--cleanup=verbatim", f"v{number}", "--message", f"breakloop {number}\n\n{text}\n"
    )
    if tagged.returncode:
        print(f"release: {tagged.stderr.strip()}", file=sys.stderr)
        return 1
    print(f"release: tagged v{number}. To publish: git push origin v{number}; {TOOLS}/twine upload dist/*")
    return 0


def _git(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [shutil.which("git") or "git", *arguments]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)


def _run(command: Command, folder: Path, **environment: str) -> str:
    """Run a program in a folder and return its output. Raises `ReleaseError` if it fails."""
    shown = " ".join(Path(part).name if isinstance(part, Path) else part for part in command)
    print(f"release: {shown}", flush=True)
    # Neither the tree nor the packages of the caller's environment may take part.
    clean = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=folder,
        env=clean | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise ReleaseError(f"{shown}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def _expect(command: Command, folder: Path, wanted: str, **environment: str) -> None:
    printed = _run(command, folder, **environment)
    if wanted not in printed:
        raise ReleaseError(f"{command[-1]}: did not print {wanted!r}\n{printed}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
