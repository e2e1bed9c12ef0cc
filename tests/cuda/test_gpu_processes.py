"""Processes and threads with a real GPU: Ctrl-C, forks, launches that are not waited for, code on disk."""

import threading

import pytest

from tests.cuda.real import real, run, share_until_return, slow_kernel

pytestmark = pytest.mark.gpu


@real
def test_launches_do_not_wait(gpu):
    ds = gpu
    slow = slow_kernel(ds, ds.field(ds.f32, shape=64))
    slow(1)
    assert share_until_return(ds, lambda: slow(3_000_000)) < 0.2


@real
def test_waiting_can_be_interrupted(tmp_path):
    out = run(
        tmp_path,
        """
        import os, signal, threading, time
        import diffsim as ds
        ds.init(arch=ds.cuda)
        x = ds.field(ds.f64, shape=64)

        @ds.kernel
        def long(n: ds.i32):
            for i in x:
                for _ in range(n):
                    x[i] = ds.sin(x[i]) + 1.0

        long(1)
        ds.sync()
        start = time.time()
        long(20_000_000)
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            ds.sync()
            print("done in", time.time() - start)
        except KeyboardInterrupt:
            print("interrupted", time.time() - start < 2)
        ds.sync()
        print(x[0] > 0)
        """,
    )
    assert out == "interrupted True\nTrue\n"


@real
def test_ctrl_c_in_a_copy(tmp_path):
    out = run(
        tmp_path,
        """
        import os, signal, threading, time
        import numpy as np
        import diffsim as ds
        ds.init(arch=ds.cuda)
        n = 100_000_000
        x = ds.field(ds.i32, shape=n)
        a = np.arange(n, dtype=np.int32)
        b = -a
        x.from_numpy(a)
        stopped = 0
        for k in range(40):
            timer = threading.Timer(0.002 * (k % 20), os.kill, (os.getpid(), signal.SIGINT))
            try:
                timer.start()
                x.from_numpy(b) if k < 20 else x.to_numpy()
                timer.join()
                time.sleep(0.01)
            except KeyboardInterrupt:
                stopped += 1
        x.from_numpy(a)
        print(stopped, np.array_equal(x.to_numpy(), a))
        """,
    )
    assert out == "40 True\n"


@real
def test_a_forked_child_is_told(tmp_path):
    out = run(
        tmp_path,
        """
        import os
        import numpy as np
        import diffsim as ds
        ds.init(arch=ds.cuda)
        x = ds.field(ds.i32, shape=1_000_000)
        a = np.zeros(1_000_000, np.int32)
        x.from_numpy(a)
        if os.fork() == 0:
            try:
                x.from_numpy(a)
            except Exception as problem:
                print("forked" in str(problem), flush=True)
            os._exit(0)
        print(os.wait()[1], x[5])
        """,
    )
    assert out == "True\n0 0\n"


def test_another_thread(gpu):
    ds = gpu
    x = ds.field(ds.f32, shape=100)

    @ds.kernel
    def set_to(a: ds.f32):
        for i in x:
            x[i] = a

    found = []

    def work():
        set_to(3.0)
        found.append(x[50])
        y = ds.field(ds.i32, shape=7)
        y.fill(4)
        found.append(y[6])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [3, 4]
    set_to(5.0)
    assert x[99] == 5


@real
def test_code_is_kept_on_disk(tmp_path):
    text = f"""
        import diffsim as ds
        from diffsim.backends.cuda.driver import Driver
        links = []
        link = Driver.link
        Driver.link = lambda self, ptx: links.append(1) or link(self, ptx)
        ds.init(arch=ds.cuda, offline_cache_file_path={str(tmp_path / "cache")!r})
        x = ds.field(ds.f32, shape=8)

        @ds.kernel
        def fill():
            for i in x:
                x[i] = ds.sin(1.0 * i)

        fill()
        print(len(links), round(x[1], 4))
        """
    assert run(tmp_path, text) == "1 0.8415\n"
    assert run(tmp_path, text) == "0 0.8415\n"
