"""A child forked at any moment compiles and launches, whatever the other threads of its parent were doing."""

import os
import subprocess
import sys
import textwrap

import pytest

pytestmark = [
    pytest.mark.host,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork"),
]

FORKS = 5
HEAD = """
import linecache, multiprocessing, os, random, sys, threading, time, warnings
import diffsim as ds

warnings.filterwarnings("ignore", category=DeprecationWarning)
ds.init(cpu_max_num_threads=2, offline_cache=False)
x = ds.field(ds.f64, shape=50_000, needs_grad=True)
loss = ds.field(ds.f64, shape=(), needs_grad=True)

def make(k):
    text = f'''
@ds.kernel
def kernel{k}():
    for i in x:
        loss[None] += {k}.0 * x[i]
'''
    file = f"<kernel {k}>"
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    space = {"ds": ds, "x": x, "loss": loss}
    exec(compile(text, file, "exec"), space)
    return space[f"kernel{k}"]

def is_right(k):
    '''Compile and differentiate something new.'''
    x.fill(1.0)
    with ds.Tape(loss):
        make(k)()
    return bool(loss[None] == 50_000.0 * k and (x.grad.to_numpy() == k).all())

@ds.kernel
def long(turns: ds.i32):
    for i in range(4):
        s = x[i]
        for k in range(turns):
            s = ds.sin(s)
        x[i] += 0.0 * s

long(1)
is_right(3)
numbers = iter(range(10, 1_000_000))

def busy(how):
    while not over.is_set():
        if how == "compile":
            make(next(numbers)).grad()
        else:
            long(200_000)

over = threading.Event()

def wait(child):
    for _ in range(3000):
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return "hung"
"""


def run(tmp_path, body: str, *arguments: str) -> str:
    file = tmp_path / "program.py"
    file.write_text(HEAD + textwrap.dedent(body))
    done = subprocess.run(
        [sys.executable, str(file), *arguments],
        capture_output=True,
        text=True,
        timeout=None if arguments else 120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize("how", ["compile", "launch"])
def test_forks_while_a_thread_is_busy(tmp_path, how):
    out = run(
        tmp_path,
        f"""
        threads = [threading.Thread(target=busy, args=("{how}",)) for _ in range(2)]
        for t in threads:
            t.start()
        for k in range({FORKS}):
            time.sleep(random.Random(k).random() * 0.05)
            child = os.fork()
            if not child:
                os._exit(0 if is_right(5) and ds.sync() is None else 1)
            print(wait(child))
        over.set()
        for t in threads:
            t.join()
        print(is_right(7))
        """,
    )
    assert out.split() == ["0"] * FORKS + ["True"]


def test_a_thread_forks(tmp_path):
    out = run(
        tmp_path,
        """
        def fork():
            child = os.fork()
            if not child:
                os._exit(0 if is_right(5) else 1)
            print(wait(child))

        compiling = threading.Thread(target=busy, args=("compile",))
        compiling.start()
        for _ in range(4):
            t = threading.Thread(target=fork)
            t.start()
            t.join()
        over.set()
        compiling.join()
        """,
    )
    assert out.split() == ["0"] * 4


def test_a_pool_of_processes(tmp_path):
    out = run(
        tmp_path,
        """
        compiling = threading.Thread(target=busy, args=("compile",))
        compiling.start()
        with multiprocessing.get_context("fork").Pool(2) as pool:
            print(pool.map(is_right, range(20, 26)))
        over.set()
        compiling.join()
        """,
    )
    assert out.strip() == str([True] * 6)


def test_the_child_hears_ctrl_c(tmp_path):
    """Also where a thread forks it: that is its main thread then."""
    out = run(
        tmp_path,
        """
        import signal

        def fork():
            child = os.fork()
            if not child:
                signal.setitimer(signal.ITIMER_REAL, 0.3)
                signal.signal(signal.SIGALRM, signal.default_int_handler)
                try:
                    long(2_000_000_000)
                except KeyboardInterrupt:
                    os._exit(0)
                os._exit(1)
            print(wait(child))

        fork()
        """,
    )
    assert out.split() == ["0"]
