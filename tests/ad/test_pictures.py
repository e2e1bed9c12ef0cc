"""`tape.visualize`: its options, what is folded, and the files it writes."""

import re
import shutil
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

import diffsim as ds
from diffsim.ad.pictures import picture as pictures

pytestmark = pytest.mark.usefixtures("cpu", "quick_code")


def nodes(text):
    """Labels of fields and steps, by their names in the DOT text."""
    return dict(re.findall(r'^(\w+) \[.*?label="((?:[^"\\]|\\.)*)"', text, re.MULTILINE))


def arrows(text):
    """The arrows of a DOT text, with labels in place of names; overwriting ones with a !."""
    labels = nodes(text)
    found = re.findall(
        r"^(\w+)(?::\w+)? -> (\w+)(?::\w+)?( \[.*overwrites.*)?;", text, re.MULTILINE
    )
    return [(labels.get(a, a), labels.get(b, b) + "!" * bool(over)) for a, b, over in found]


@pytest.fixture
def program():
    """Three steps of four kernels in place, and a loss."""
    x, v, force = (ds.field(ds.f64, shape=4, needs_grad=True) for _ in range(3))
    rest = ds.field(ds.f64, shape=4)
    loss = ds.field(ds.f64, shape=(), needs_grad=True)

    @ds.kernel
    def clear():
        for i in force:
            force[i] = 0.0

    @ds.kernel
    def springs():
        for i in x:
            force[i] += rest[i] - x[i]

    @ds.kernel
    def kick(dt: ds.f64, t: ds.i32):
        for i in v:
            v[i] = v[i] + dt * force[i]

    @ds.kernel
    def drift():
        for i in x:
            x[i] = x[i] + 0.1 * v[i]

    @ds.kernel
    def total():
        for i in x:
            loss[None] += x[i] ** 2

    def run(steps=3):
        for t in range(steps):
            clear()
            springs()
            kick(0.1, t)
            drift()
        total()

    return x, v, force, rest, loss, run


def record(run, *args):
    tape = ds.Tape(in_place="save")
    with tape:
        run(*args)
    return tape


def test_repeated_steps_are_folded(program):
    *_, run = program
    tape = record(run, 1000)
    text = tape.visualize()
    assert text.count("shape=box") == 5
    assert 'label="× 1000"' in text
    labels = nodes(text).values()
    assert {"clear()", "springs()", "kick(0.1, 0…999)", "drift()", "total()"} < set(labels)
    assert tape.visualize(simplify_graph=False).count("shape=box") == 4001
    # All arrows of one step, and those that overwrite.
    assert arrows(text) == [
        ("clear()", "force!"),
        ("rest", "springs()"),
        ("x", "springs()"),
        ("springs()", "force"),
        ("v", "kick(0.1, 0…999)"),
        ("force", "kick(0.1, 0…999)"),
        ("kick(0.1, 0…999)", "v!"),
        ("x", "drift()"),
        ("v", "drift()"),
        ("drift()", "x!"),
        ("x", "total()"),
        ("total()", "loss"),
    ]


def test_repetitions_in_repetitions_and_scopes():
    a, b = (ds.ndarray(ds.f64, 3, needs_grad=True) for _ in range(2))

    @ds.kernel
    def relax(old: ds.types.ndarray(), new: ds.types.ndarray()):
        for i in old:
            new[i] = 0.5 * old[i]

    @ds.kernel
    def scale(p: ds.types.ndarray(), k: ds.f64):
        for i in p:
            p[i] = k * p[i]

    tape = ds.Tape(in_place="save")
    with tape:
        for t in range(5):
            tape.record_scope_begin(f"step {t}", {"time": t})
            for _ in range(4):
                relax(a, b)
                relax(b, a)
            scale(a, 2.0 + t)
            tape.record_scope_end()
        for _ in range(3):
            scale(b, 3.0)
    text = tape.visualize(array_labels={a: "a", b: "b"})
    assert text.count("shape=box") == 4
    assert 'label="step 0 … step 4 × 5"' in text
    assert 'label="× 4"' in text
    assert "scale(p, 2.0…6.0)" in text
    assert "scale(p, 3.0) × 3" in text
    flat = tape.visualize(ignore_graph_scopes=True)
    assert "step 0" not in flat
    assert 'label="× 5"' in flat
    # Ports: the parameters that arrays were given for.
    assert re.search(r'PORT="in_0">.*old<.*relax.*PORT="out_1">.*new<', text)
    assert "field0 -> step0:in_0;" in text


def test_scopes():
    x = ds.field(ds.f64, shape=(), needs_grad=True)
    tape = ds.Tape()
    with tape:
        tape.record_scope_begin("outer", {"gain": 2.5, "mode": "fast"})
        tape.record_scope_begin("empty")
        tape.record_scope_end()
        tape.record_scope_begin("kept")
        tape.record_scope_end(remove_scope_if_empty=False)
        x[None] = 1.0
        tape.record_scope_end()
        tape.record_scope_begin("not ended")
        x[None] = 2.0
    text = tape.visualize()
    assert r'label="outer\ngain: 2.5\nmode: \'fast\'"'.replace("\\'", "'") in text
    assert 'label="kept"' in text
    assert "empty" not in nodes(text).values()
    assert 'label="empty"' not in text
    assert text.count("{") == text.count("}")
    with pytest.raises(ds.ArgumentError, match="metadata is a dictionary, not 3"):
        tape.record_scope_begin("x", 3)


def test_names_roles_and_hidden_fields(program):
    x, v, _, rest, loss, run = program
    lonely = ds.field(ds.f64, shape=2)
    tape = record(run)
    assert set(nodes(tape.visualize()).values()) > {"x", "v", "force", "rest", "loss"}
    hidden = tape.visualize(hide_readonly_arrays=True)
    assert "rest" not in nodes(hidden).values()
    assert ("rest", "springs()") not in arrows(hidden)
    text = tape.visualize(
        hide_readonly_arrays=True,
        track_inputs=[rest, x, lonely],
        track_input_names=["rest length", "position", "lonely"],
        track_outputs=[loss],
        array_labels={v: 'the "v"', x: "not shown"},
    )
    labels = nodes(text)
    assert {"rest length", "position", "lonely", "loss", r"the \"v\""} < set(labels.values())
    assert "not shown" not in labels.values()
    rank = {label: name for name, label in labels.items()}
    source = re.search(r"rank=source; (.*);}", text)[1].split("; ")
    assert source == [rank["rest length"], rank["position"], rank["lonely"]]
    assert f"rank=sink; {rank['loss']};" in text
    assert text.count("palegreen") == 4
    assert text.count("lightgray") == 2  # rest and lonely
    assert text.count("peripheries=2") == 4


def test_the_longest_or_the_first_name():
    q = ds.ndarray(ds.f64, 3)

    @ds.kernel
    def fill(the_array_to_fill: ds.types.ndarray()):
        for i in the_array_to_fill:
            the_array_to_fill[i] = 1.0

    tape = ds.Tape()
    with tape:
        fill(q)
        fill(np.zeros(3))
    assert 'field0 [label="the_array_to_fill"' in tape.visualize()
    first = tape.visualize(choose_longest_node_name=False)
    assert 'field0 [label="q"' in first
    assert 'field1 [label="the_array_to_fill"' in first


def test_functions_with_a_gradient_of_their_own(program):
    x, v, force, rest, _, run = program

    @ds.ad.grad_replaced
    def whole_step(steps):
        run(steps)

    @ds.ad.grad_for(whole_step)
    def whole_step_backward(steps):
        pass

    def on_the_way_back():
        pass

    tape = ds.Tape()
    with tape:
        whole_step(1)
        tape.record_func(on_the_way_back, [v])
        ds.copy(rest, x)
        ds.stop_grad(force)
    text = tape.visualize()
    step = [a for a in arrows(text) if "whole_step" in a]
    assert sorted(step) == sorted(
        [(f, "whole_step") for f in ("x", "rest", "v", "force")]
        + [("whole_step", f) for f in ("force", "v", "x", "loss")]
    )
    assert ("v", "on_the_way_back") in arrows(text)
    assert ("copy", "rest!") in arrows(text)
    assert "whole_step_backward" not in text


@pytest.mark.parametrize("direction", ["LR", "RL", "TB", "BT"])
@pytest.mark.parametrize("graphviz", [True, False])
def test_files_and_notebooks(program, tmp_path, monkeypatch, direction, graphviz):
    if graphviz and (shutil.which("dot") is None or direction != "TB"):
        pytest.skip("GraphViz draws one of them, where it is")
    if not graphviz:
        monkeypatch.setattr(pictures.shutil, "which", lambda name: None)
    *_, run = program
    tape = record(run)
    made = tape.visualize(tmp_path / "tape.svg", graph_direction=direction)
    assert f"rankdir={direction}" in made
    root = ElementTree.parse(tmp_path / "tape.svg").getroot()
    assert root.tag.endswith("svg")
    assert made._repr_html_().startswith("<div")
    assert "<svg" in made._repr_html_()
    if direction == "TB":
        tape.visualize(str(tmp_path / "tape.png"))
        assert (tmp_path / "tape.png").read_bytes().startswith(b"\x89PNG")
        tape.visualize(str(tmp_path / "tape.gv"))
        assert (tmp_path / "tape.gv").read_text() == tape.visualize()


def shapes(text):
    """The texts of an SVG file, and where its boxes and ellipses are: (left, top, right, bottom)."""
    root = ElementTree.fromstring(text)
    name = "{http://www.w3.org/2000/svg}"
    words = ["".join(node.itertext()) for node in root.iter(f"{name}text")]
    boxes = []
    for group in root.iter(f"{name}g"):
        for node in group:
            at = {key: float(value) for key, value in node.attrib.items() if key[0] in "xywhcr"}
            if node.tag == f"{name}rect":
                x, y, w, h = (at[key] for key in ("x", "y", "width", "height"))
                boxes.append((x, y, x + w, y + h))
            elif node.tag == f"{name}ellipse":
                x, y, rx, ry = (at[key] for key in ("cx", "cy", "rx", "ry"))
                boxes.append((x - rx, y - ry, x + rx, y + ry))
    view = [float(part) for part in root.attrib["viewBox"].split()]
    return words, boxes, view, root


def test_notebooks_draw_a_tape_themselves(program, monkeypatch):
    """No GraphViz and no matplotlib; what repeats is one box."""
    monkeypatch.setattr(
        pictures.shutil, "which", lambda name: pytest.fail("GraphViz is not needed")
    )
    monkeypatch.setattr(pictures, "draw", lambda *_: pytest.fail("nor is matplotlib"))
    *_, run = program
    words, boxes, (left, top, width, height), root = shapes(record(run, 79)._repr_svg_())
    for text in ("× 79", "kick(0.1, 0…78)", "drift()", "total()", "force", "dashed: overwrites"):
        assert text in words, words
    assert len(boxes) == 10
    for x, y, right, bottom in boxes:
        assert left <= x < right <= left + width
        assert top <= y < bottom <= top + height
    tips = [node.text for node in root.iter("{http://www.w3.org/2000/svg}title")]
    assert "drift(): reads x, v; writes x" in tips
    heads = list(root.iter("{http://www.w3.org/2000/svg}polygon"))
    assert len(heads) == len(arrows(record(run, 79).visualize()))


def test_arrows_end_at_their_nodes(program):
    *_, run = program
    made = record(run).visualize()
    for direction in ("LR", "RL", "TB", "BT"):
        made.graph.direction = direction
        _, boxes, _, root = shapes(made._repr_html_().partition(">")[2].removesuffix("</div>"))
        for head in root.iter("{http://www.w3.org/2000/svg}polygon"):
            x, y = map(float, head.attrib["points"].split()[0].split(","))
            on_edge = [
                min(abs(x - b[0]), abs(x - b[2]), abs(y - b[1]), abs(y - b[3])) < 0.2
                and b[0] - 0.2 <= x <= b[2] + 0.2
                and b[1] - 0.2 <= y <= b[3] + 0.2
                for b in boxes
            ]
            assert any(on_edge)


def test_any_name_is_text_of_the_picture(program):
    x, *_, run = program
    tape = ds.Tape(in_place="save")
    with tape:
        tape.record_scope_begin("a <b> & \x00 \ud800", {"k": "<i>"})
        run(1)
        tape.record_scope_end()
    made = tape.visualize(array_labels={x: "<x>"})
    words = shapes(made._repr_html_().partition(">")[2].removesuffix("</div>"))[0]
    assert "a <b> & \ufffd \ufffd" in words
    assert "k: '<i>'" in words
    assert "<x>" in words


def test_a_long_tape_is_not_drawn_unasked(program, monkeypatch):
    *_, run = program
    tape = record(run)
    monkeypatch.setattr("diffsim.ad.pictures.drawn._MOST_DRAWN", 12)
    assert tape._repr_svg_() is None
    monkeypatch.setattr("diffsim.ad.pictures.drawn._MOST_DRAWN", 13)
    assert tape._repr_svg_().startswith("<svg")


def test_the_layout_follows_the_tape(program):
    from diffsim.ad.pictures.layout import place

    *_, run = program
    graph = record(run).visualize().graph
    for direction, axis, sign in (("LR", 0, 1), ("RL", 0, -1), ("TB", 1, 1), ("BT", 1, -1)):
        graph.direction = direction
        layout = place(graph)
        along = [sign * layout.center["s", k][axis] for k in range(5)]
        assert along == sorted(along)
        # No two boxes lie on each other.
        boxes = [(layout.center[key], layout.size[key]) for key in layout.labels]
        for k, (c, s) in enumerate(boxes):
            for d, t in boxes[:k]:
                assert any(abs(c[a] - d[a]) >= (s[a] + t[a]) / 2 - 1e-9 for a in (0, 1))
        (frame,) = layout.frames
        assert frame.label == "× 3"
        assert frame.steps == [("s", k) for k in range(4)]


def test_wrong_options(program):
    x, *_, run = program
    tape = record(run)
    for options, match in (
        ({"graph_direction": "up"}, "graph_direction='up' is not possible"),
        ({"simplify_graph": 1}, "simplify_graph is True or False, not 1"),
        ({"array_labels": [x]}, "array_labels is a dictionary"),
        ({"array_labels": {"x": "position"}}, "array_labels is a dictionary from fields to names"),
        ({"filename": "tape.jpg"}, r"not written as \.jpg(?s:.*)\.svg"),
        ({"filename": "tape.html"}, r"not written as \.html(?s:.*)\.svg"),
        ({"track_inputs": x}, "track_inputs is a list of fields and arrays"),
        ({"track_outputs": [x], "track_output_names": ["a", "b"]}, "one for each of track_outputs"),
    ):
        with pytest.raises(ds.ArgumentError, match=match):
            tape.visualize(**options)
    with pytest.raises(
        ds.KernelTypeError, match=r"Tape\.visualize has (?s:.*)did you mean graph_direction="
    ):
        tape.visualize(graph_directions="LR")


def test_an_empty_tape():
    assert ds.Tape().visualize() == "digraph tape {\nrankdir=LR;\n\n}\n"
    assert shapes(ds.Tape()._repr_svg_())[0] == ["nothing was recorded"]
