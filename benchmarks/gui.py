"""Frames a second of ds.GUI in a window, with those of ti.GUI and of matplotlib's imshow beside it.

    Xvfb :7 -screen 0 1280x1100x24 &
    DISPLAY=:7 python benchmarks/gui.py [--peer PYTHON] [--write]

`--peer` is a Python with Taichi. Each number is the best of several rounds, in which the three take turns,
each in a process of its own: the machine is seldom quiet. `--write` puts the table into gui.md.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
CIRCLES = 10_000
TASKS = ["image 512", "image 1024", "circles 512", "circles 1024"]
SECONDS = 1.0  # of a measurement


def rate(frame):
    """Frames a second of a function, and seconds of processor time a frame, without those of the X server."""
    for _ in range(5):
        frame()
    count, start, worked = 0, time.perf_counter(), time.process_time()
    while (spent := time.perf_counter() - start) < SECONDS:
        frame()
        count += 1
    return count / spent, (time.process_time() - worked) / count


def measure_gui(module):
    """Rates of a GUI of Taichi's interface; module is diffsim or taichi."""
    rng = np.random.default_rng(0)
    found = {}
    for size in (512, 1024):
        gui = module.GUI(f"{size}", res=(size, size))
        gui.fps_limit = None if module.__name__ == "diffsim" else 10_000
        image = module.Vector.field(3, module.f32, shape=(size, size))
        image.from_numpy(rng.random((size, size, 3), np.float32))
        places = rng.random((CIRCLES, 2))

        def show_image(gui=gui, image=image):
            gui.set_image(image)
            gui.show()

        def show_circles(gui=gui, places=places):
            gui.circles(places, radius=2, color=0x068587)
            gui.show()

        found[f"image {size}"] = rate(show_image)
        found[f"circles {size}"] = rate(show_circles)
        gui.close()
    return found


def measure_imshow():
    """The usual way: an image artist whose data is replaced."""
    from matplotlib import pyplot as plt

    found = {}
    for size in (512, 1024):
        pixels = np.random.default_rng(0).random((size, size, 3), np.float32)
        figure = plt.figure(figsize=(size / 100, size / 100))
        axes = figure.add_axes((0, 0, 1, 1))
        axes.axis("off")
        picture = axes.imshow(pixels)
        figure.canvas.manager.show()

        def frame(figure=figure, picture=picture, pixels=pixels):
            picture.set_data(pixels)
            figure.canvas.draw()
            figure.canvas.flush_events()

        found[f"image {size}"] = rate(frame)
        plt.close(figure)
    return found


def measure(who):
    """Measure one of the three in this process."""
    if who == "ds.GUI":
        import diffsim

        return measure_gui(diffsim)
    if who == "ti.GUI":
        import taichi

        taichi.init(arch=taichi.cpu)
        return measure_gui(taichi)
    return measure_imshow()


def in_process(python, who):
    """Measure in a process of its own, whose last line is the result."""
    command = [python, __file__, "--measure", who]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def table(best):
    """The rates as a table of Markdown."""
    lines = [
        "| frames a second (processor time of one) | " + " | ".join(best) + " |",
        "|---|" + "---|" * len(best),
    ]
    for task in TASKS:
        cells = [
            f"{rates[task][0]:.0f} ({1000 * rates[task][1]:.1f} ms)" if task in rates else ""
            for rates in best.values()
        ]
        what, size = task.split()
        what = f"{CIRCLES:,} circles" if what == "circles" else "an image"
        lines.append(f"| {what}, {size} x {size} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main():
    """Measure in turns, print the table, perhaps write it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--peer", help="a Python that has Taichi")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--write", action="store_true", help="put the table into gui.md")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        print(json.dumps(measure(args.measure)))
        return
    who = {"ds.GUI": sys.executable, "matplotlib's imshow": sys.executable}
    if args.peer:
        who["ti.GUI"] = args.peer
    best = {name: {} for name in who}
    for _ in range(args.rounds):
        for name, python in who.items():
            for task, found in in_process(python, name).items():
                most, least = best[name].get(task, found)
                best[name][task] = max(found[0], most), min(found[1], least)
    print(table(best))
    if args.write:
        from diffsim.runtime.files import write_text  # Taichi's Python has no diffsim

        page = HERE / "gui.md"
        head = page.read_text().partition("\n| frames")[0]
        write_text(page, f"{head}\n{table(best)}")


if __name__ == "__main__":
    main()
