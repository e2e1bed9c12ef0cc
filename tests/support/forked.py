"""Python scripts run as from the command line, each in a fork of a process that has imported diffsim.

A fork begins half a second of CPU time later than Python itself does, a second where pictures are made.
Everything else is the script's own: its folder, arguments, environment, output and end. What is about the
start of Python, or about signals, takes `processes.py`.
"""

import atexit
import functools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

IMPORTED = """
    diffsim matplotlib.animation matplotlib.pyplot mpl_toolkits.mplot3d PIL.GifImagePlugin pytest
""".split()
SERVER = """
import gc, importlib, json, os, runpy, signal, sys

for name in sys.argv[1:]:
    importlib.import_module(name)
gc.collect()
gc.freeze()
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        break
    _, status = os.waitpid(child, 0)
    print(os.waitstatus_to_exitcode(status), flush=True)
else:
    sys.exit()
order = json.loads(line)
signal.alarm(order["timeout"])
for stream, path in enumerate(order["streams"]):
    file = os.open(path, os.O_WRONLY if stream else os.O_RDONLY)
    os.dup2(file, stream)
    os.close(file)
os.chdir(order["folder"])
os.environ.clear()
os.environ.update(order["environment"])
sys.argv = order["command"]
found = os.environ.get("PYTHONPATH", "").split(os.pathsep)
sys.path[:1] = [os.path.dirname(sys.argv[0]), *filter(None, found)]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def run(script, *arguments, folder, environment=None, warnings="default", timeout=300):
    """What the script printed on both streams, and with which status it ended."""
    command = [str(script), *map(str, arguments)]
    environment = dict(os.environ if environment is None else environment)
    if not hasattr(os, "fork"):
        return subprocess.run(
            [sys.executable, "-W", warnings, *command],
            cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True,
            encoding="utf-8", errors="replace", timeout=timeout,
        )  # fmt: skip
    with tempfile.TemporaryDirectory() as place:
        streams = [Path(place, name) for name in ("out", "err")]
        for stream in streams:
            stream.touch()
        order = dict(command=command, environment=environment, folder=str(folder), timeout=timeout)
        order["streams"] = [os.devnull, *map(str, streams)]
        server = _server(warnings)
        server.stdin.write(json.dumps(order) + "\n")
        server.stdin.flush()
        status = int(server.stdout.readline())
        printed = (s.read_text(encoding="utf-8", errors="replace") for s in streams)
        return subprocess.CompletedProcess(command, status, *printed)


@functools.cache
def _server(warnings):
    server = subprocess.Popen(
        [sys.executable, "-W", warnings, "-c", SERVER, *IMPORTED],
        # Python warns of forks beside threads, those of NumPy's library too.
        env={**os.environ, "PYTHONIOENCODING": "utf-8", "OPENBLAS_NUM_THREADS": "1"},
        cwd=Path(__file__).resolve().parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    atexit.register(server.communicate)  # at the end of its orders it ends
    return server
