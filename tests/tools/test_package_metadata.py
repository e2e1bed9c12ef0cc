"""Links of the README on the package index."""

import importlib.util
import re
import subprocess
import sys
import tomllib
import types
from pathlib import Path

import pytest

import diffsim as ds

ROOT = Path(__file__).parents[2]


@pytest.fixture
def hook(monkeypatch):
    fake = types.ModuleType("hatchling.metadata.plugin.interface")
    fake.MetadataHookInterface = object
    monkeypatch.setitem(sys.modules, fake.__name__, fake)  # it is there as a package is built
    spec = importlib.util.spec_from_file_location("hook", ROOT / "tools" / "package_metadata.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_links_are_absolute(hook):
    text = "[a](docs/a.md), ![p](p.png), [b](https://x.org/y), [c](#c), [`[d]`](d.md#e)"
    assert hook.readme_for_index(text, "https://host/us/it", "1.2") == (
        "[a](https://host/us/it/blob/v1.2/docs/a.md), ![p](https://host/us/it/raw/v1.2/p.png), "
        "[b](https://x.org/y), [c](#c), [`[d]`](https://host/us/it/blob/v1.2/d.md#e)"
    )
    assert hook.readme_for_index(text, "", "1.2") == ("a, , [b](https://x.org/y), [c](#c), `[d]`")


@pytest.mark.parametrize("repository", ["", "https://host/us/it"])
def test_nothing_relative_is_left_of_ours(hook, repository):
    made = hook.readme_for_index((ROOT / "README.md").read_text("utf-8"), repository, "1")
    assert re.findall(r"\]\((?!https?://|#)[^)]*\)", made) == []
    assert set(hook.addresses(repository, "1")) == (
        {"Source", "Documentation", "Changelog", "Issues"} if repository else set()
    )


def test_there_is_one_version():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["version"] == ds.__version__


def archived():
    """What lies at the top of the source archive, as pyproject.toml says."""
    build = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["hatch"]["build"]
    asked = {name.strip("/") for name in build["targets"]["sdist"]["include"]}
    return asked | {"pyproject.toml", "LICENSE", ".gitignore"}  # which hatchling adds by itself


def test_the_source_archive_has_what_tests_open():
    texts = [p.read_text("utf-8") for p in (ROOT / "tests").rglob("*.py")]
    tops = re.compile(r'(?:ROOT|parents\[2]\)?) / "([^"/]+)')
    opened = {name for text in texts for name in tops.findall(text)}
    assert {"docs", "README.md", "tools"} <= opened
    assert opened <= archived()


def test_the_source_archive_has_every_file_under_git():
    def listed(*options):
        run = subprocess.run(
            ["git", "ls-files", *options], cwd=ROOT, capture_output=True, text=True, check=False
        )
        if run.returncode:
            pytest.skip("not a repository of git")
        return run.stdout.split("\n")[:-1]

    assert {name.partition("/")[0] for name in listed()} <= archived()
    assert listed("--cached", "--ignored", "--exclude-standard") == [], "hatchling leaves these out"
