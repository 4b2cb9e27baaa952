"""Processes of this machine that answer calls: forks of the standard library's fork server.

The server imports what workers need, once. A worker is then a fork of it, which takes tenths of a second instead of
seconds. What workers do is sent by cloudpickle and ``__main__`` is never imported again, so scripts without a guard
and notebooks have workers, too.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import pickle
import random
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import lru_cache, partial
from importlib import import_module
from importlib.machinery import ModuleSpec
from multiprocessing.connection import Connection
from multiprocessing.reduction import DupFd
from queue import SimpleQueue
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, TypeVar, cast

from privbo.protocol.errors import ConfigurationError, RunError

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController

VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""What numerical libraries read when they are loaded."""


_LIMITING = threading.Lock()
_LIMITS: list[int] = []
_BEFORE = ExitStack()


@contextmanager
def limited_threads(count: int) -> Iterator[None]:
    """Limit BLAS, OpenMP and torch to ``count`` threads; the last limit holds, also of those set by other threads.

    Clients' matrices are small: more than one thread waits more than it works, on a busy machine by spinning, and
    rounds differently.
    """
    import torch  # noqa: F401 (else it is limited only where it is loaded)

    with limited_loaded_threads(count):
        yield


@contextmanager
def limited_loaded_threads(count: int) -> Iterator[None]:
    """As ``limited_threads``, where torch should not be loaded only to limit it."""
    with _LIMITING:
        if not _LIMITS:
            _BEFORE.enter_context(_libraries(len(sys.modules)).limit(limits=count))
            if (torch := _loaded_torch()) is not None:
                _BEFORE.callback(torch.set_num_threads, torch.get_num_threads())
        _LIMITS.append(count)
        _limit(count)
    try:
        yield
    finally:
        with _LIMITING:
            _LIMITS.remove(count)
            if _LIMITS:
                _limit(_LIMITS[-1])
            else:
                _BEFORE.close()


def _limit(count: int) -> None:
    _libraries(len(sys.modules)).limit(limits=count)
    if (torch := _loaded_torch()) is not None:
        torch.set_num_threads(count)


def _loaded_torch() -> ModuleType | None:
    """Torch where something has loaded it; a thread that is still loading it is waited for."""
    if "torch" not in sys.modules:
        return None
    import torch

    return torch


@lru_cache(maxsize=1)
def _libraries(n_modules: int) -> ThreadpoolController:  # noqa: ARG001 (what is loaded is looked for once)
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


Stopped: TypeAlias = Callable[[], bool]


@contextmanager
def watched_interrupts() -> Iterator[Stopped]:
    """Note every SIGINT and hand it on; yields what tells whether one came.

    Python hands signals to the main thread, so in another one the answer stays no.

    Example:
        >>> with watched_interrupts() as stopped:
        ...     stopped()
        False
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield lambda: False
        return
    seen = threading.Event()

    def note(number: int, frame: FrameType | None) -> None:
        seen.set()
        before(number, frame)

    signal.signal(signal.SIGINT, note)
    try:
        yield seen.is_set
    finally:
        signal.signal(signal.SIGINT, before)


T = TypeVar("T")


class NoAnswerError(Exception):
    """A limited call gave no value: it overran its time, raised, or its process ended."""


def within(seconds: float, call: Callable[[], T]) -> T:
    """Call a function in a forked process, and kill that with all of its children when the time is up.

    What the call changes in memory is lost with its process, and global generators are drawn anew in it: two calls that
    draw from one of them would otherwise draw the same.

    Raises:
        NoAnswerError: Saying in words why no value came.
        ConfigurationError: Where processes can't be forked (Windows).

    Example:
        >>> within(60.0, lambda: 1 + 1)
        2
    """
    if not hasattr(os, "fork"):
        raise ConfigurationError("a time limit on evaluations needs processes that fork; drop [times] on this system")
    _loaded_torch()  # in the child nobody would finish what another thread is loading here
    ours, theirs = multiprocessing.Pipe(duplex=False)
    process = os.fork()  # not multiprocessing's: the workers of clusters are daemons, which it lets have no children
    if not process:
        _answer(theirs, call)
    theirs.close()
    try:
        if not ours.poll(None if math.isinf(seconds) else seconds):
            raise NoAnswerError(f"TimeoutError: no value within {seconds:.3g} s, which is what was left of its time")
        kind, value = ours.recv()
    except EOFError:
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        process = 0
        raise NoAnswerError(f"its process ended with code {code} and gave no value") from None
    finally:
        _end(process)
        ours.close()
    if kind == "error":
        raise NoAnswerError(str(value))
    return cast("T", value)


def _answer(theirs: Connection, call: Callable[[], T]) -> NoReturn:
    """Give the value of the call, or its error's class and text, to the process that waits."""
    try:
        os.setpgid(0, 0)  # of its own, so that its children end with it and the operator's Ctrl-C is not its own
        try:
            stir_generators()
            found: tuple[str, object] = ("value", call())
        except BaseException as error:
            found = ("error", named(error))
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        theirs.send(found)
    finally:
        os._exit(0)


def stir_generators(key: bytes | None = None) -> None:
    """Seed the global generators, which objectives may use, by 32 bytes; anew without a key."""
    import numpy as np

    key = key or os.urandom(32)
    random.seed(key)
    np.random.seed(np.frombuffer(key, dtype="<u4"))  # noqa: NPY002 (as above)
    if (torch := _loaded_torch()) is not None:
        seed = int.from_bytes(key[:8], "little")
        torch.default_generator.manual_seed(seed)
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed_all(seed)


@contextmanager
def kept_generators() -> Iterator[None]:
    """Leave the global generators as they were."""
    import numpy as np

    torch, before = _loaded_torch(), (random.getstate(), np.random.get_state())  # noqa: NPY002 (as above)
    state = None if torch is None else torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])  # noqa: NPY002 (as above)
        if torch is not None:
            torch.set_rng_state(state)


def named(error: BaseException) -> str:
    """An error's class and text, in characters that can be written; an error may fail to say what it is, too."""
    try:
        return f"{type(error).__name__}: {error}".encode(errors="backslashreplace").decode()
    except BaseException:  # whatever it does: it is a client's
        return type(error).__name__


def _end(process: int) -> None:
    """End a process and its children, and wait for it; 0 is one that was waited for."""
    if not process:
        return
    for end in (os.killpg, os.kill):  # it may not have a group of its own yet
        with suppress(ProcessLookupError, PermissionError):
            end(process, signal.SIGKILL)
    os.waitpid(process, 0)


_PRELOADED = [
    "privbo.protocol.one_thread",
    "privbo.runs.worker_pool",
    "privbo.algorithms.thompson.local_model",
    "numba",
]
_STARTING = threading.Lock()


def n_jobs(jobs: int | None) -> int:
    """Number of workers on this machine: what was asked for, else one per processor that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return jobs or (len(affinity(0)) if affinity is not None else os.cpu_count() or 1)


def start_server() -> None:
    """Start the fork server unless it runs; it loads its modules while this process goes on.

    Raises:
        ConfigurationError: Where processes can't be forked (Windows).
    """
    if sys.platform == "win32":
        raise ConfigurationError("worker processes need Unix; use executor='threads', a Dask client, or jobs=1")
    from multiprocessing import forkserver, resource_tracker

    forkserver.set_forkserver_preload(_PRELOADED)
    resource_tracker.ensure_running()  # by itself: starting it lets Ctrl-C through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # Ctrl-C is the operator's word to this process
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class WorkerProcess:
    """An object in a process of its own, which ends when this process does.

    Args:
        make: Makes the object there.
        threads: Threads of numerical libraries there.
        quiet: Whether what is written to the process's own descriptors is dropped.

    Raises:
        ConfigurationError: If it can't be made there.

    Example:
        >>> process = WorkerProcess(list)
        >>> process.call("append", 3), process.call("copy")
        (None, [3])
        >>> process.end()
    """

    def __init__(self, make: Callable[[], object], *, threads: int = 1, quiet: bool = False) -> None:
        import cloudpickle

        self._dumps = cloudpickle.dumps
        start_server()
        from multiprocessing.popen_forkserver import Popen

        environment = os.environ | dict.fromkeys(VARIABLES, str(threads))
        context = multiprocessing.get_context("forkserver")
        self._connection, theirs = context.Pipe()
        with theirs, open(os.devnull, "wb") as nowhere, _main_stays_here():  # noqa: PTH123 (no file of ours)
            streams = [DupFd(nowhere.fileno() if quiet else stream) for stream in (1, 2)]
            process = context.Process(target=_serve, args=(theirs, streams, environment))
            self._process = Popen(process)  # not start(): it lets daemons, such as Dask's workers, have no children
        try:
            self._ask(make)
        except Exception as error:
            self.end()
            raise ConfigurationError(f"a worker process can't begin: {named(error)}") from error

    def call(self, name: str, *args: object) -> Any:  # noqa: ANN401 (whatever the method returns)
        """Call a method of the object, and return or raise what it does.

        Raises:
            RunError: If the process has ended.
        """
        return self._ask((name, args))

    def end(self) -> None:
        """Kill the process."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._connection.close()

    def _ask(self, question: object) -> Any:  # noqa: ANN401 (whatever the method returns)
        message = self._dumps(question)
        try:
            self._connection.send_bytes(message)
            answer = self._connection.recv_bytes()
        except (EOFError, OSError):
            raise RunError(f"a worker process ended with code {self._process.wait()}") from None
        is_error, value = pickle.loads(answer)  # noqa: S301 (our own process, over a private socket)
        if is_error:
            raise value
        return value


@contextmanager
def process_pool(jobs: int) -> Iterator[Callable[..., Future[Any]]]:
    """Give what submits calls of functions to worker processes; calls under way when the block ends are killed."""
    caller = partial(import_module, "operator")  # whose ``call`` calls a function
    processes = [WorkerProcess(caller) for _ in range(jobs)]
    idle: SimpleQueue[WorkerProcess] = SimpleQueue()
    for process in processes:
        idle.put(process)

    def call(function: Callable[..., object], *args: object) -> object:
        process = idle.get()
        try:
            return process.call("call", function, *args)
        finally:
            idle.put(process)

    with ThreadPoolExecutor(jobs) as threads:
        try:
            yield lambda *asked: threads.submit(call, *asked)
        finally:
            threads.shutdown(wait=False, cancel_futures=True)
            for process in processes:
                process.end()


@contextmanager
def _main_stays_here() -> Iterator[None]:
    """Have children started in this block leave ``__main__`` alone; each would import the script once more, else.

    They do so where it is a package's ``__main__.py``, whose name is all they look at.
    """
    main = sys.modules["__main__"]
    with _STARTING:
        before, main.__spec__ = main.__spec__, ModuleSpec("privbo.__main__", None)
        try:
            yield
        finally:
            main.__spec__ = before


def _serve(connection: Connection, streams: list[Any], environment: dict[str, str]) -> NoReturn:
    """Make an object and answer calls of its methods until the process that asks is gone."""
    import cloudpickle

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the operator's, of the process that asks
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    threading.Thread(target=_end_with_parent, daemon=True).start()
    for descriptor, stream in enumerate(streams, start=1):
        os.dup2(stream.detach(), descriptor)
    os.environ.clear()
    os.environ.update(environment)
    stir_generators()
    made, value = False, None
    try:
        while True:
            message = connection.recv_bytes()
            try:
                question = pickle.loads(message)  # noqa: S301 (from the process that started this one)
                if made:
                    name, args = question
                    answer = cloudpickle.dumps((False, getattr(value, name)(*args)))
                else:
                    made, value = True, question()
                    answer = cloudpickle.dumps((False, None))
            except Exception as error:
                error.add_note(f"In a worker process: {traceback.format_exc()}")
                answer = cloudpickle.dumps((True, portable(error)))
            sys.stdout.flush()
            sys.stderr.flush()
            connection.send_bytes(answer)
    except (EOFError, OSError):
        os._exit(0)


def _end_with_parent() -> None:
    """End this process when the one that started it is gone, whatever it computes."""
    if (parent := multiprocessing.parent_process()) is not None:
        parent.join()
        os._exit(0)


def portable(error: BaseException) -> BaseException:
    """An error as it can be sent to another process: itself, or its class and text where it can't be sent.

    Example:
        >>> portable(ValueError("too few"))
        ValueError('too few')
    """
    import cloudpickle

    try:
        pickle.loads(cloudpickle.dumps(error))  # noqa: S301 (made in this line)
    except Exception:
        return RunError(named(error))
    return error
