"""Worker processes, forks of a server that hold one object each; calls in a process of their own."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_info

import privbo as pb
from privbo.algorithms.thompson import local_model
from privbo.protocol import processes

SCRIPT = """
import privbo as pb
from pathlib import Path
from privbo.protocol.processes import WorkerProcess

with Path("imported").open("a") as file:
    file.write("once\\n")

def score(client, params):
    return -abs(params["x"] - OFFSET * client)

OFFSET = 0.1
problem = pb.Problem(space={"x": pb.Real(0, 1)}, objective=score, n_clients=4)
simulated = pb.Privacy(noise_multiplier=1.0, noise="simulation")
runs = [
    pb.run(problem, pb.FedPNE(), privacy=simulated, rounds=2, seed=1, **how)
    for how in ({}, {"executor": "processes", "jobs": 2})
]
assert (runs[0].clients.values == runs[1].clients.values).all()
print(__spec__ and __spec__.name, "done")
"""


class Worker:
    """What a process holds here."""

    def evaluate(self, text: str) -> object:
        return eval(text, {"os": os, "sys": sys, "np": np})  # noqa: S307 (written in this file)

    def write(self, text: str) -> None:
        print(text)
        os.write(1, text.encode())
        os.write(2, text.encode())

    def wait(self, path) -> None:
        path.write_text(str(os.getpid()))
        time.sleep(60.0)

    def fail(self, error: BaseException) -> None:
        raise error


@contextmanager
def started(**settings):
    process = processes.WorkerProcess(Worker, **settings)
    try:
        yield process
    finally:
        process.end()


@pytest.fixture
def worker():
    with started() as process:
        yield process


OURS = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}


def run_script(tmp_path, *arguments: str, text: str | None = None) -> str:
    pipes = {"input": text, "capture_output": True, "text": True}
    done = subprocess.run([sys.executable, *arguments], check=False, cwd=tmp_path, timeout=300, env=OURS, **pipes)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("how", ["path", "module", "stdin"])
def test_a_script_without_a_guard_has_workers_and_runs_once(tmp_path, how):
    """Its functions are no module's; a child that imported it again would start children of its own."""
    (tmp_path / "script.py").write_text(SCRIPT)
    arguments = {"path": ("script.py",), "module": ("-m", "script"), "stdin": ("-",)}[how]
    said = run_script(tmp_path, *arguments, text=SCRIPT if how == "stdin" else None)
    assert said == ("script done" if how == "module" else "None done")
    assert (tmp_path / "imported").read_text() == "once\n"


def test_a_worker_begins_with_what_workers_need(worker):
    assert worker.call("evaluate", "'torch' in sys.modules and 'privbo.runs.worker_pool' in sys.modules")


def test_a_worker_sees_the_environment_directory_and_path_of_now(tmp_path, monkeypatch, worker):
    """Not those of the server, which the other worker has started."""
    monkeypatch.setenv("PRIVBO_TEST", "now")
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    with started(threads=3) as process:
        assert process.call("evaluate", "os.environ.get('PRIVBO_TEST'), os.environ.get('HOME')") == ("now", None)
        assert process.call("evaluate", f"[os.environ[name] for name in {processes.VARIABLES}]") == ["3"] * 3
        assert process.call("evaluate", "os.getcwd()") == str(tmp_path)
        assert str(tmp_path) in process.call("evaluate", "sys.path")


def test_workers_draw_from_generators_of_their_own(worker):
    with started() as other:
        for draw in ("np.random.random()", "__import__('torch').rand(1).item()", "__import__('random').random()"):
            assert worker.call("evaluate", draw) != other.call("evaluate", draw)


def test_a_quiet_worker_writes_nowhere(capfd):
    for quiet in (True, False):
        with started(quiet=quiet) as process:
            process.call("write", "secret")
        out, err = capfd.readouterr()
        assert ("secret" in out, "secret" in err) == (not quiet, not quiet)


def test_a_worker_raises_what_its_object_does_and_goes_on(worker):
    with pytest.raises(ValueError, match="too few") as raised:
        worker.call("fail", ValueError("too few"))
    assert any("in fail" in note for note in raised.value.__notes__)
    assert worker.call("evaluate", "1 + 1") == 2
    with pytest.raises(TypeError, match="pickle"):
        worker.call("evaluate", "sys._getframe()")
    assert worker.call("evaluate", "1 + 1") == 2


def test_an_object_that_cannot_be_made_is_refused():
    with pytest.raises(pb.ConfigurationError, match="can't begin: FileNotFoundError"):
        processes.WorkerProcess(partial(open, "/nowhere/at/all"))


def test_workers_are_started_from_many_threads_at_once():
    def start(_: int) -> int:
        with started() as process:
            return process.call("evaluate", "os.getpid()")

    main = sys.modules["__main__"].__spec__
    with ThreadPoolExecutor(8) as threads:
        assert len(set(threads.map(start, range(8)))) == 8
    assert sys.modules["__main__"].__spec__ is main


ORPHAN = """
from pathlib import Path
from privbo.protocol.processes import WorkerProcess
from tests.protocol.test_processes import Worker
WorkerProcess(Worker).call("wait", Path("worker"))
"""


def test_a_worker_ends_when_its_parent_is_killed_whatever_it_does(tmp_path):
    with subprocess.Popen([sys.executable, "-c", ORPHAN], cwd=tmp_path, env=OURS) as parent:
        file = tmp_path / "worker"
        wait_for(lambda: file.exists() and file.read_text())
        parent.send_signal(signal.SIGKILL)
    wait_for(lambda: not is_alive(int(file.read_text())))


def wait_for(condition) -> None:
    deadline = time.monotonic() + 60.0
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


INTERRUPTED = """
import signal, sys
from privbo.protocol.processes import WorkerProcess, start_server
signal.signal(signal.SIGINT, lambda *_: None)
start_server()
print("loading", flush=True)
sys.stdin.readline()
process = WorkerProcess(list)
print(process.call("copy"))
process.end()
"""


def test_an_interrupt_is_nothing_to_a_server_that_loads(tmp_path):
    """Ctrl-C in a terminal goes to every process; its traceback would stand beside the run's own words."""
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE) | {"text": True, "env": OURS}
    with subprocess.Popen([sys.executable, "-c", INTERRUPTED], cwd=tmp_path, start_new_session=True, **pipes) as parent:
        assert parent.stdout.readline() == "loading\n"
        time.sleep(0.5)
        os.killpg(parent.pid, signal.SIGINT)
        out, err = parent.communicate("\n", timeout=120)
    assert (out, err) == ("[]\n", "")


DAEMON = """
import multiprocessing
from privbo.protocol.processes import WorkerProcess

def work():
    process = WorkerProcess(list)
    print(process.call("copy"))
    process.end()

daemon = multiprocessing.get_context("fork").Process(target=work, daemon=True)
daemon.start()
daemon.join()
"""


def test_daemons_may_have_workers(tmp_path):
    """Dask's workers are daemons, to which the standard library allows no children."""
    assert run_script(tmp_path, "-c", DAEMON) == "[]"


def test_a_pool_calls_functions_in_as_many_processes():
    with processes.process_pool(2) as submit:
        found = [submit(slow_process) for _ in range(2)]
        assert len({one.result() for one in found} | {os.getpid()}) == 3
        with pytest.raises(ZeroDivisionError):
            submit(divmod, 1, 0).result()
        assert submit(divmod, 7, 2).result() == (3, 1)


def slow_process() -> int:
    time.sleep(0.5)
    return os.getpid()


def test_a_pool_that_is_left_kills_what_is_under_way(tmp_path):
    file = tmp_path / "worker"
    with processes.process_pool(1) as submit:
        submit(Worker().wait, file)
        wait_for(lambda: file.exists() and file.read_text())
    assert not is_alive(int(file.read_text()))


def test_a_pool_whose_worker_dies_says_so():
    with processes.process_pool(1) as submit, pytest.raises(pb.RunError, match="ended with code 7"):
        submit(os._exit, 7).result()


DRAWS = {
    "numpy": lambda: float(np.random.normal()),  # noqa: NPY002 (an objective may use it)
    "python": random.random,
    "torch": lambda: float(torch.rand(1, dtype=torch.float64)),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_calls_that_draw_from_a_global_generator_do_not_all_draw_the_same(draw):
    draw()  # so that the generator stands before the fork
    assert len({draw(), *(processes.within(60.0, draw) for _ in range(3))}) == 4


def test_a_call_that_raises_says_so():
    with pytest.raises(processes.NoAnswerError, match="ZeroDivisionError: "):
        processes.within(60.0, lambda: 1 / 0)


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
def test_the_last_limit_holds_whoever_set_it_and_the_first_threads_come_back():
    before = _counts()
    with ThreadPoolExecutor(1) as other, processes.limited_loaded_threads(3):
        entered, left = threading.Event(), threading.Event()

        def limited():
            with processes.limited_loaded_threads(1):
                entered.set()
                left.wait()

        ended = other.submit(limited)
        entered.wait()
        with processes.limited_loaded_threads(1):
            assert _counts() == {1}
        left.set()
        ended.result()
        with processes.limited_loaded_threads(3):
            assert _counts() == {3}
    assert _counts() == before


LOADING = """
import sys, threading
loading = threading.Thread(target=__import__, args=("torch",))
loading.start()
while "torch" not in sys.modules:
    pass
"""
LIMITING = """
from privbo.protocol.processes import kept_generators, limited_loaded_threads, stir_generators
with kept_generators(), limited_loaded_threads(1):
    stir_generators(bytes(32))
    print(sys.modules["torch"].get_num_threads())
print(sys.modules["torch"].get_num_threads())
"""
FORKING = """
from privbo.protocol.processes import within
print(within(5.0, lambda: 7))
"""
SLOW_TORCH = """
import time
time.sleep(1.0)
threads = 2
def get_num_threads(): return threads
def set_num_threads(count): global threads; threads = count
def get_rng_state(): return 0
def set_rng_state(state): pass
class default_generator: manual_seed = print
class cuda: is_initialized = bool
"""


@pytest.mark.parametrize(("script", "said"), [(LIMITING, "0\n1\n2"), (FORKING, "\n7")], ids=["limit", "fork"])
def test_a_torch_that_another_thread_loads_is_waited_for(script, said, tmp_path):
    """Also before a fork: in the child nobody would ever finish loading it."""
    (tmp_path / "torch.py").write_text(SLOW_TORCH)
    assert run_script(tmp_path, "-c", LOADING + script).endswith(said)


def _counts():
    return {torch.get_num_threads(), *(pool["num_threads"] for pool in threadpool_info())}


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("executor", ["serial", "threads"])
def test_models_have_one_thread_and_objectives_what_they_had(executor, monkeypatch):
    models, objectives, maximise = set(), set(), local_model.maximise

    def counted(*args):
        models.add(torch.get_num_threads())
        return maximise(*args)

    def objective(client, params):
        objectives.add(torch.get_num_threads())
        return -abs(params["x"] - 0.1 * client)

    monkeypatch.setattr(local_model, "maximise", counted)
    problem = pb.Problem(space={"x": pb.Real(0, 1)}, objective=objective, n_clients=4)
    how = {"executor": executor} | ({"jobs": 2} if executor == "threads" else {})
    pb.run(problem, pb.SharedPrior(evaluations=8), privacy=pb.NoPrivacy(), rounds=8, seed=0, **how)
    assert models == {1}
    assert torch.get_num_threads() == 2
    assert 2 in objectives if executor == "threads" else objectives == {2}
