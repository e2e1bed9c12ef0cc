"""The page `results.md`, made of the rows in `results.json`; of AVX2, `results-avx2`."""

import json
from pathlib import Path
from typing import Any

from suite import AVX2, RESULTS

from diffsim.runtime.files import write_text

Row = dict[str, Any]
SIZE_NAMES = ("cache", "memory", "8 times")


def write_page(folder: Path, machine: Row, rows: list[Row]) -> None:
    """Put rows in the place of those of the same program, size and threads."""
    kept = folder / f"{RESULTS}.json"
    old = json.loads(kept.read_text(encoding="utf-8"))["rows"] if kept.exists() else []
    fresh = {key(row) for row in rows}
    everything = sorted([r for r in old if key(r) not in fresh] + rows, key=key)
    data = dict(machine=machine, rows=everything)
    write_text(kept, json.dumps(data, indent=0) + "\n")
    write_text(folder / f"{RESULTS}.md", page(folder, machine, everything))


def key(row: Row) -> tuple[str, int, int]:
    return row["program"], row["threads"], row["size"]


def time_of(row: Row, framework: str, direction: str) -> float | None:
    """Seconds: of the processor with one thread, of the clock with two; None where it is wrong."""
    told = row.get(framework, {})
    if direction not in told or (told.get("wrong") and framework != "diffsim"):
        return None
    return told[direction][0 if row["threads"] > 1 else 1]


def quotient(a: float | None, b: float | None) -> float | None:
    return a / b if a and b else None


def short(value: float | None, scale: float = 1.0) -> str:
    if value is None:
        return "–"
    value *= scale
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def shortfalls(row: Row) -> dict[str, float]:
    """By how much a row misses the targets: quotients above 1."""
    ours = {d: time_of(row, "diffsim", d) for d in ("forward", "backward")}
    limits = dict(forward=dict(c=1 / 0.8, taichi=1 / 2), backward=dict(c=1.5, taichi=1 / 3))
    missed = {}
    for direction, of in limits.items():
        for framework, limit in of.items():
            ratio = quotient(ours[direction], time_of(row, framework, direction))
            if ratio and ratio > limit:
                missed[f"{direction}, {framework.replace('c', 'C', framework == 'c')}"] = (
                    ratio / limit
                )
    growth = quotient(ours["backward"], ours["forward"])
    if growth and growth > 3 and time_of(row, "c", "backward") is None:
        missed["backward over forward"] = growth / 3
    return missed


def bound(row: Row, machine: Row) -> str:
    """What the model says: memory or arithmetic, and how many times longer the run takes."""
    items, moved, computed = row["work"]
    rate = machine["cache" if row["size"] == 0 else "memory"]
    memory, arithmetic = items * moved / rate, items * computed / machine["operations"]
    name = "memory" if memory > arithmetic else "arithmetic"
    ours = time_of(row, "diffsim", "forward")
    return f"{name}, {short(quotient(ours, max(memory, arithmetic)))} ×"


HEAD = (
    "| program | n | forward [ms] | C / us | Taichi / us | gradient [ms] | us / C | us / forward | "
    "Taichi / us | whole tape, Taichi / us | bound, measured over model |\n" + "|---" * 11 + "|\n"
)


def table(rows: list[Row], machine: Row) -> str:
    lines = []
    for row in rows:
        ours = {d: time_of(row, "diffsim", d) for d in ("forward", "backward", "whole")}
        to = {
            (f, d): quotient(time_of(row, f, d), t)
            for f in ("c", "taichi")
            for d, t in ours.items()
        }
        lifted = "*" * (row["diffsim"].get("rules") == "lifted")
        cells = [
            row["program"] + lifted,
            f"{row['n']}",
            short(ours["forward"], 1e3),
            short(to["c", "forward"]),
            short(to["taichi", "forward"]),
            short(ours["backward"], 1e3),
            short(quotient(1, to["c", "backward"])),
            short(quotient(ours["backward"], ours["forward"])),
            short(to["taichi", "backward"]),
            short(to["taichi", "whole"]),
            bound(row, machine),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return HEAD + "\n".join(lines) + "\n"


def compile_table(rows: list[Row]) -> str:
    """Seconds of the first calls, at the smallest size."""
    head = (
        "| program | forward, diffsim | gradient, diffsim | forward, Taichi | gradient, Taichi |\n"
    )
    lines = [head + "|---" * 5 + "|"]
    for row in rows:
        if row["threads"] > 1 or (row["size"] and row["program"] != "unrolled_layer"):
            continue
        name = row["program"]
        if name == "unrolled_layer":
            name += f", {row['n']} × {row['n']}"
        cells = [
            short(row.get(f, {}).get(k))
            for f in ("diffsim", "taichi")
            for k in ("first_forward", "first_gradient")
        ]
        lines.append("| " + " | ".join([name, *cells]) + " |")
    return "\n".join(lines) + "\n"


def missed_table(rows: list[Row]) -> str:
    found = [(by, what, row) for row in rows for what, by in shortfalls(row).items()]
    found.sort(key=lambda f: -f[0])
    met = sum(not shortfalls(row) for row in rows)
    lines = [f"{met} of {len(rows)} rows meet all targets.", ""]
    lines += ["| program | n | threads | what | missed by a factor of |", "|---|---|---|---|---|"]
    lines += [
        f"| {r['program']} | {r['n']} | {r['threads']} | {what} | {by:.2f} |"
        for by, what, r in found
    ]
    return "\n".join(lines) + "\n"


def remarks(rows: list[Row]) -> str:
    """Gradients that are not there or wrong, one line for each program."""
    lines: dict[str, None] = {}
    for row in rows:
        name = row["program"]
        for framework, title in (("diffsim", "diffsim"), ("taichi", "Taichi"), ("c", "C")):
            told = row.get(framework)
            if told and told.get("wrong"):
                places = ", ".join(w.rsplit(" ", 1)[0] for w in told["wrong"])
                lines[f"- {name}: {title} differs in {places}"] = None
            if told and "no_gradient" in told:
                lines[f"- {name}: no gradient by {title}: {told['no_gradient']}"] = None
    return "\n".join(lines) + "\n"


def about(folder: Path) -> list[str]:
    """Paragraphs on what was measured."""
    if not AVX2:
        return [(folder / "about.md").read_text(encoding="utf-8").strip()]
    return [
        "As [`results.md`](results.md), with vectors of 256 bits in the code of diffsim "
        "(`DIFFSIM_VECTOR_BITS=256`) and of C (`-mno-avx512f`); Taichi uses what the processor has."
    ]


def page(folder: Path, machine: Row, rows: list[Row]) -> str:
    one = [r for r in rows if r["threads"] == 1]
    two = [r for r in rows if r["threads"] > 1]
    checked = dict.fromkeys(
        f"{r['program']} {r['difference']}" for r in rows if r.get("difference")
    )
    cache, memory = (short(machine[level], 1e-9) for level in ("cache", "memory"))
    rates = f"{cache} GB/s in the cache, {memory} GB/s of memory"
    parts = [
        "# Programs as people write them",
        f"{machine['name']}, Python {machine['python']}; one processor: {rates}, "
        f"{short(machine['operations'], 1e-9)} Gflop/s.",
        *about(folder),
        "## One thread",
        table(one, machine).strip(),
        "## Two threads",
        table(two, machine).strip(),
        "## What misses the targets",
        missed_table(rows).strip(),
        "## First calls [s]",
        compile_table(rows).strip(),
        "## Values",
        "Gradients of diffsim along a random direction, against central differences in f64 at a tiny "
        "size: " + "; ".join(checked) + ".",
        remarks(rows).strip(),
    ]
    return "\n\n".join(parts) + "\n"
