"""The pages for those who come from another framework leave out none of its public names."""

import importlib.util
from pathlib import Path

import pytest

from diffsim.lang.host.peer_names import advice_for

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("update_docs", ROOT / "tools" / "update_docs.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("peer", ["taichi", "warp"])
def test_every_name_is_here_or_has_advice(tool, peer):
    modules = tool.peer_modules(peer)
    assert sum(len(names) for names in modules.values()) > 250
    attributes = tool.peer_names.OF_TAPES
    lost = [
        f"{module}.{name}"
        for module, names in modules.items()
        for name in names
        if not tool.is_here(module, name) and not advice_for(name) and name not in attributes
    ]
    assert lost == []


@pytest.mark.parametrize("peer", ["taichi", "warp"])
def test_the_page_has_every_table(tool, peer):
    page = (ROOT / "docs" / f"from-{peer}.md").read_text("utf-8")
    for topic in tool.TABLES[peer]:
        assert f'made: show_advice("{peer}", "{topic}")' in page
    for module in tool.peer_modules(peer):
        assert f'show_same_names("{peer}"' + (f', "{module}"' if module else "") in page
