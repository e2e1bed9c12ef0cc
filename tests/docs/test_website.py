"""The documentation's site, before MkDocs makes HTML of it: links, order, an entry for each public name."""

import importlib.util
import posixpath
import re
import sys
import types
from pathlib import Path

import pytest

import diffsim as ds

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"\]\(([^)\s]+)\)|src=\"([^\"]+)\"")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
FENCED = re.compile(r"^(`{3,}).*?^\1$", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def website():
    spec = importlib.util.spec_from_file_location("write", ROOT / "tools" / "website" / "write.py")
    module = importlib.util.module_from_spec(spec)
    before = sys.path[:]
    spec.loader.exec_module(module)
    sys.path[:] = before
    return module


@pytest.fixture(scope="module")
def pages(website):
    return website.pages()


def anchors(text):
    """What links into a page may name: headings, as GitHub and the site write them, and marks."""
    text = FENCED.sub("", text)
    found = set(re.findall(r'(?:<a id="|\{ #)([\w-]+)', text))
    for heading in HEADING.findall(text):
        words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        found.add(re.sub(r"[^\w\- ]", "", words).strip().replace(" ", "-"))
    return found


def dead_links(pages, files):
    """The links to pages, files and headings that are not there."""
    known = {uri: anchors(text) for uri, text in pages.items()}
    dead = []
    for uri, text in pages.items():
        prose = re.sub(r"(`+).*?\1", "", FENCED.sub("", text))
        for target in (a or b for a, b in LINK.findall(prose)):
            if re.match("[a-z]+:", target):
                continue
            path, _, anchor = target.partition("#")
            goal = posixpath.normpath(posixpath.join(posixpath.dirname(uri), path)) if path else uri
            if goal not in {*pages, *files} or (anchor and anchor not in known[goal]):
                dead.append(f"{uri}: {target}")
    return dead


def test_all_links_lead_somewhere(website, pages):
    files = website.copied(pages)
    assert [str(path) for path in files.values() if not path.is_file()] == []
    assert dead_links(pages, files) == []


def test_dead_links_are_found(website):
    pages = {"a.md": "# A b\n\n[1](b.md#c-d) [2](c.md) [3](b.md#e) [4](#a-b)", "b.md": "## `C` d\n"}
    assert dead_links(pages, {}) == ["a.md: c.md", "a.md: b.md#e"]
    with pytest.raises(website.DeadLinkError, match=r"README\.md:7: there is no docs/nowhere\.md"):
        website._with_links("[x](docs/nowhere.md)", "index.md", ROOT / "README.md", 7)


def test_links_of_the_repository_become_links_of_the_site(website):
    line = (
        "[a](docs/gpu.md#x) [b](examples/) [c](LICENSE) [d](https://ffmpeg.org) [e](CHANGELOG.md)"
    )
    assert website._with_links(line, "index.md", ROOT / "README.md", 1) == (
        "[a](gpu.md#x) [b](gallery/index.md) [c](files/LICENSE.txt) [d](https://ffmpeg.org) [e](changelog.md)"
    )


def test_names_in_prose_lead_to_their_entries(website):
    entries = {"ds.Tape": "reference/kernels.md#ds-Tape"}
    line = "`ds.Tape(loss)` [a `ds.Tape`](b.md) `ds.nothing` `x.ds.Tape`"
    linked = f"[`ds.Tape(loss)`](../reference/kernels.md#ds-Tape){line.removeprefix('`ds.Tape(loss)`')}\n"
    assert website.with_names(line, "adr/a.md", entries) == linked
    for text in (
        "# `ds.Tape`",
        "[a\n`ds.Tape`](b.md)",
        "```python\n`ds.Tape`\n```",
        "    `ds.Tape`",
    ):
        assert website.with_names(text, "adr/a.md", entries) == text + "\n"


def test_every_page_has_one_place_in_the_order(website, pages):
    def listed(part):
        if isinstance(part, str):
            return [part]
        return [
            uri for p in (part.values() if isinstance(part, dict) else part) for uri in listed(p)
        ]

    order = listed(website.order.navigation(pages))
    assert sorted(order) == sorted(pages)
    assert order[0] == "index.md"


DOCS = sorted((ROOT / "docs").glob("*.md"))


def test_the_first_line_of_a_page_says_what_it_is_and_for_whom(website):
    assert [p.name for p in DOCS if not website.order.FIRST_LINE.match(p.read_text("utf-8"))] == []


def test_every_page_is_in_a_section_of_its_own_kind(website):
    texts = {p.stem: p.read_text("utf-8") for p in DOCS}
    wrong = [
        name
        for kind, sections in website.order.SECTIONS.items()
        for names in sections.values()
        for name in names.split()
        if name in texts and website.order.kind_of(texts[name]) != kind
    ]
    assert wrong == []


def test_the_readme_leads_to_every_page():
    linked = set(re.findall(r"\]\(docs/([\w-]+\.md)", (ROOT / "README.md").read_text("utf-8")))
    assert {p.name for p in DOCS} - linked == set()


def test_a_page_that_no_list_names_comes_last_in_its_part(website):
    page = "# New\n\n*Explanation. For those who try: a page.*\n"
    assert website.order.sections("Explanation", {"new.md": page})[""] == ["new.md"]
    assert (
        "- [New](new.md): for those who try: a page."
        in website.order.part_pages({"new.md": page})["explanation.md"]
    )


MODULES = [name for name in dir(ds) if isinstance(getattr(ds, name), types.ModuleType)]
PUBLIC = [f"ds.{name}" for name in dir(ds) if name[0] != "_"] + [
    f"ds.{module}.{name}"
    for module in MODULES
    for name in dir(getattr(ds, module))
    if name[0] != "_"
]


def test_notebooks_show_what_their_cells_print_and_draw(pages):
    made = {uri: text for uri, text in pages.items() if re.match(r"notebooks/\d", uri)}
    assert len(made) == 5
    for text in made.values():
        assert re.search(
            r'<img alt="[^"]+" src="data:image/(png|svg\+xml);base64,[\w+/]{500}', text
        )
    assert "<pre>by differences: [-2.154 -3.293]</pre>" in made["notebooks/1-first-gradient.md"]
    (shown,) = re.findall(
        r'^<div class="cell-output">.*ds-show.*$', made["notebooks/4-how-autodiff-works.md"], re.M
    )
    assert "&#10;" not in shown[: shown.index("</style>")], "no references in a sheet of styles"


def test_every_public_name_has_one_entry(pages):
    modules = {f"ds.{m}" for m in MODULES}  # a page each
    entries = [
        anchor
        for uri, text in pages.items()
        if uri.startswith("reference/")
        for heading in re.findall(r"^## .*\n\n.*$", text, re.MULTILINE)
        for anchor in re.findall(r'(?:<a id="|\{ #)([\w-]+)', heading)
    ]
    wanted = {name.replace(".", "-") for name in PUBLIC if name not in modules}
    assert wanted <= set(entries)
    assert len(set(entries)) == len(entries)
    assert {f"reference/{m.removeprefix('ds.')}.md" for m in modules} <= set(pages)


def test_everything_that_is_called_has_a_signature_and_words(website):
    reference = website.reference
    things = {n: t for page in reference.entries().values() for n, t in page.items()}
    called = {
        n: t
        for n, t in things.items()
        if callable(t) and not isinstance(t, (type, *reference.AS_VALUES))
    }
    assert len(called) > 200
    assert [n for n, t in called.items() if not reference._signature(n, t)] == []
    assert [n for n, t in things.items() if not reference._doc(t).strip()] == []


def test_an_entry_has_signature_arguments_and_members(pages):
    page = pages["reference/kernels.md"]
    entry = page[page.index("## `ds.Tape`") :].split("\n## ")[0]
    assert "loss: Field | None = None" in entry
    assert "- `loss`: " in entry
    assert "### `zero` { #ds-Tape-zero }" in entry
    example = "**Example:**\n\n```python\nprint(ds.sqrt(9.0))  # prints: 3.0\n```"
    assert example in pages["reference/ops.md"]
    assert "ds.atan2(x1: float, x2: float) -> float" in pages["reference/ops.md"]
    assert "ds.atomic_add(x, y)" in pages["reference/in-kernels.md"]
    assert "dtype: ScalarType" not in page, "fields are made by functions"
    refused = (
        pages["reference/errors.md"].split("## `ds.GlobalDataAccessError`")[1].split("\n## ")[0]
    )
    assert "[`ds.AutodiffError`](#ds-AutodiffError)" in refused
    assert "leave_package" not in refused  # the base's
