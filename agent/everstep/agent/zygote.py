"""The parent of a machine's ranks: it has imported what they need, and forks one when asked.

Started by the agent as `python -m everstep.agent.zygote SETTINGS`, with a socket pair's end. It has
one thread, for only such a process can be forked safely; the agent has many. When an import starts
a thread or touches a GPU, or when the command is no Python script, it runs on as plain parent of
fresh programs (`Settings.plain`), so that everything else about ranks is the same.

    agent                                      zygote
                                          <-   {ready}
    {fork, ...}, log [, channel | port]   ->
                                          <-   {forked}   or   {refused}
    {kill}                                ->
                                          <-   {exited, status, at_s}   for each child

It dies with the agent, and its children with it. Nothing is ever unpickled.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from everstep.agent import imports, pipe, process, program, rendezvous
from everstep.core import names

_ALWAYS = ("everstep.checkpoint",)
# The last one is imported in the first backward pass, which costs most of a second there.
_TORCH = ("torch.distributed", "torch.optim", "torch.fx.experimental.symbolic_shapes")


@dataclass(frozen=True, slots=True)
class Settings:
    """What a zygote is told at its start.

    Attributes:
        socket_fd: Its end of the socket pair.
        agent_pid: Its parent.
        plain: Whether to import nothing and start fresh programs.
        script: Script whose imports to make, or None.
        code_directory: Where code lies that may change, so is never imported before a fork.
        modules: Further modules to import.
        notes: What has to be told with the ready message.
    """

    socket_fd: int
    agent_pid: int
    plain: bool
    script: str | None = None
    code_directory: str = ""
    modules: Sequence[str] = ()
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Fork:
    """A request for a child, with the descriptors that came along.

    Attributes:
        number: What its end is told with.
        kind: `rank`, `check` or `store`.
        argv: Command of a rank or a check; empty for a store.
        directory: Working directory.
        environment: All of the child's environment.
        log_fd: Where its output goes.
        fd: A rank's channel, the pipe that a check answers through, or a store's listening socket.
    """

    number: int
    kind: str
    argv: list[str]
    directory: str
    environment: dict[str, str]
    log_fd: int
    fd: int


def main() -> None:
    """Be a zygote; returns in no process."""
    if not sys.flags.safe_path:
        # The working directory, which `-m` puts there, has nothing that a rank should find.
        del sys.path[0]
    settings = Settings(**json.loads(sys.argv[1]))
    process.die_with(settings.agent_pid)
    process.adopt_orphans()
    began_s = time.monotonic()
    notes = list(settings.notes)
    if not settings.plain:
        notes += _import_all(settings)
        if (obstacle := _obstacle()) is not None:
            _run_plain(settings, [*notes, obstacle])
        # A collection in a child would write to, and so copy, every page that they share.
        gc.freeze()
    sock = socket.socket(fileno=settings.socket_fd)
    ready = {"notes": notes, "prewarmed": not settings.plain, "took_s": time.monotonic() - began_s}
    pipe.send(sock, {"ready": ready})
    _Children(sock, settings.plain).serve()


class _Children:
    """Forks, watches and kills children.

    Args:
        sock: To the agent.
        plain: Whether children become fresh programs.
    """

    def __init__(self, sock: socket.socket, plain: bool) -> None:
        self._sock = sock
        self._plain = plain
        self._numbers: dict[int, int] = {}
        self._wake, self._woken_by_signal = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        signal.set_wakeup_fd(self._woken_by_signal, warn_on_full_buffer=False)

    def serve(self) -> None:
        """Do what the agent asks, until it is gone."""
        while True:
            sources: list[Any] = [self._sock, self._wake]
            readable, _, _ = select.select(sources, [], [])
            if self._wake in readable:
                os.read(self._wake, 4096)
                self._reap()
            if self._sock in readable:
                try:
                    message, fds = pipe.receive(self._sock)
                except (EOFError, OSError):
                    # Children are killed by the kernel as soon as this process ends.
                    os._exit(0)
                self._obey(message, fds)

    def _obey(self, message: dict[str, Any], fds: list[int]) -> None:
        if "kill" in message:
            for pid in self._numbers:
                os.kill(pid, signal.SIGKILL)
            return
        order = Fork(**message["fork"], log_fd=fds[0], fd=fds[1])
        try:
            pid = os.fork()
        except OSError as error:
            pipe.send(self._sock, {"refused": str(error)})
        else:
            if pid == 0:
                self._be_child(order)
            self._numbers[pid] = order.number
            pipe.send(self._sock, {"forked": pid})
        for fd in fds:
            os.close(fd)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            # Others are adopted orphans.
            if (number := self._numbers.pop(pid, None)) is not None:
                message = {"exited": number, "status": status, "at_s": time.time()}
                pipe.send(self._sock, message)

    def _be_child(self, order: Fork) -> None:
        code = 1
        try:
            parent = os.getppid()
            os.setsid()
            process.die_with(parent)
            self._leave()
            os.dup2(order.log_fd, 1)
            os.dup2(order.log_fd, 2)
            os.close(order.log_fd)
            code = _run(order, self._plain)
        except BaseException:  # noqa: BLE001 - nobody is left to whom it could be raised
            traceback.print_exc()
        finally:
            # Neither this process's nor its parent's objects are taken down: what a script's end
            # has to do is done, and the rest would touch state that was meant for the parent.
            os._exit(code)

    def _leave(self) -> None:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        self._sock.close()
        os.close(self._wake)
        os.close(self._woken_by_signal)


def _run(order: Fork, plain: bool) -> int:
    if order.kind == "store":
        argv = [sys.executable, "-m", rendezvous.__name__, str(order.fd)]
        if not plain:
            return rendezvous.serve(order.fd)
    else:
        argv = [program.executable(order.argv[0]), *order.argv[1:]]
        variable = names.ENV_RESULT_FD if order.kind == "check" else names.ENV_CHANNEL_FD
        order.environment[variable] = str(order.fd)
        target = program.python_target(order.argv)
        if not plain and target is not None:
            return program.run(target, Path(order.directory), order.environment)
    os.chdir(order.directory)
    os.set_inheritable(order.fd, True)
    try:
        os.execvpe(argv[0], argv, order.environment)  # noqa: S606 - the job's own command
    except OSError as error:
        sys.stderr.write(f"cannot run {argv[0]}: {error}\n")
        sys.stderr.flush()
        return 127


def _import_all(settings: Settings) -> list[str]:
    wanted = [imports.Import(module) for module in (*_ALWAYS, *settings.modules)]
    if settings.script is not None:
        script, code = Path(settings.script), Path(settings.code_directory)
        wanted += imports.outside_imports(script, code)
    gc.disable()
    notes = [note for item in wanted if (note := _import(item))]
    if "torch" in sys.modules:
        notes += [note for module in _TORCH if (note := _import(imports.Import(module)))]
    gc.enable()
    return notes


def _import(item: imports.Import) -> str | None:
    try:
        module = importlib.import_module(item.module)
    except BaseException as error:  # noqa: BLE001 - an import runs anybody's code, even sys.exit()
        return f"import of {item.module} failed: {error!r}"
    for name in item.names:
        if not hasattr(module, name):
            _import(imports.Import(f"{item.module}.{name}"))
    return None


def _obstacle() -> str | None:
    """Why this process must not be forked."""
    if (count := process.num_threads()) > 1:
        return f"{count} threads run after the imports: ranks start as fresh programs"
    cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is not None and cuda.is_initialized():
        return "an import has initialized CUDA: ranks start as fresh programs"
    return None


def _run_plain(settings: Settings, notes: Sequence[str]) -> None:
    # The same process id, parent and socket, without what was imported.
    settings = replace(settings, plain=True, notes=tuple(notes))
    os.set_inheritable(settings.socket_fd, True)
    argv = [*command(), json.dumps(asdict(settings))]
    os.execv(argv[0], argv)  # noqa: S606 - this very program


def command() -> list[str]:
    """The program that takes `Settings`, as JSON, for its last argument."""
    return [sys.executable, "-m", "everstep.agent.zygote"]


if __name__ == "__main__":
    main()
