"""Functions that run in a process of their own: it may crash, hang or need another environment.

The process is this file run as a script. It knows nothing of gnomon: a job names the file and the
function that it calls, so that a compiler does not wait for torch to be imported.
"""

import contextlib
import importlib.util
import os
import pickle
import select
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

_LENGTH = 8
_PATIENCE = 1.0


class WorkerError(RuntimeError):
    """A job failed: it raised (the text is its traceback), its process died, or time ran out."""


class JobTimeoutError(WorkerError):
    """A job took too long; its process was killed."""


class WorkerDiedError(WorkerError):
    """The process of a job died: a crash, or a kill from outside."""


class Worker:
    """A process that runs one job after another; it starts at the first, and again after a crash.

    `environment` holds the variables in which it differs from this process (None: unset); `log` is
    a file to which it appends what it prints, which compilers do at length.
    """

    def __init__(self, environment: Mapping[str, str | None], log: Path | None = None) -> None:
        self._environment = dict(environment)
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, file: Path, function: str, *args: object, timeout: float = 120.0) -> Any:
        """The result of the function of that name in that Python file.

        Raises WorkerError where it raises, kills its process or takes more than `timeout` seconds.
        """
        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            _send(process.stdin, (str(file), function, args))
            succeeded, result = _receive(process.stdout, time.monotonic() + timeout)
        except TimeoutError:
            self.close()
            raise JobTimeoutError(
                f"{function} took more than {timeout:g} s; its process is gone"
            ) from None
        except (BrokenPipeError, EOFError):
            code = process.wait()
            self.close()
            raise WorkerDiedError(
                f"the process of {function} died with exit status {code}"
            ) from None
        if not succeeded:
            raise WorkerError(str(result))
        return result

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
            for name, value in self._environment.items():
                environment.pop(name, None)
                if value is not None:
                    environment[name] = value
            with contextlib.ExitStack() as stack:
                log = None if self._log is None else stack.enter_context(self._log.open("ab"))
                self._process = subprocess.Popen(
                    [sys.executable, __file__],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    env=environment,
                )
        return self._process

    def is_running(self) -> bool:
        """Whether there is a process: a job that comes next does not find a fresh one."""
        return self._process is not None and self._process.poll() is None

    def close(self) -> None:
        """Ends the process: at once where it does nothing, by force where it is busy."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        try:
            process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _send(stream: IO[bytes], message: object) -> None:
    data = pickle.dumps(message)
    stream.write(len(data).to_bytes(_LENGTH, "little") + data)
    stream.flush()


def _receive(stream: IO[bytes], deadline: float) -> Any:
    size = int.from_bytes(_read(stream, _LENGTH, deadline), "little")
    return pickle.loads(_read(stream, size, deadline))


def _read(stream: IO[bytes], size: int, deadline: float) -> bytes:
    parts, missing = [], size
    while missing:
        ready, _, _ = select.select([stream], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            raise TimeoutError
        part = os.read(stream.fileno(), min(missing, 1 << 20))
        if not part:
            raise EOFError
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)


def _function(file: str, name: str, known: dict[str, Any]) -> Callable[..., Any]:
    if file not in known:
        spec = importlib.util.spec_from_file_location(Path(file).stem, file)
        assert spec is not None
        assert spec.loader is not None
        known[file] = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = known[file]  # dataclasses look their module up there
        spec.loader.exec_module(known[file])
    function: Callable[..., Any] = getattr(known[file], name)
    return function


def _serve() -> None:
    """Answers jobs until the parent closes the pipe; what a job prints goes to stderr."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    known: dict[str, Any] = {}
    while True:
        head = sys.stdin.buffer.read(_LENGTH)
        if len(head) < _LENGTH:
            return
        file, name, args = pickle.loads(sys.stdin.buffer.read(int.from_bytes(head, "little")))
        try:
            answer = True, _function(file, name, known)(*args)
        except Exception:  # noqa: BLE001  whatever it is, the parent gets its traceback
            answer = False, traceback.format_exc()
        _send(answers, answer)


if __name__ == "__main__":
    # the folder of this file must not shadow other packages
    sys.path.pop(0)
    _serve()
