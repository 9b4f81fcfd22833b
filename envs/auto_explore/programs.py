"""Python programs on a copy of a repository, run by bubblewrap without network, within limits, and writing only there.

Limits that the system enforces for each process are set before the program begins. The resources that it and its
children use together are read every few milliseconds from the sandbox's own ``/proc``; beyond a limit, the whole
process namespace is killed. A program can only make the system calls of ``ALLOWED``: others fail with
ENOSYS, which lets libraries fall back on an older call, as on a kernel without the newer one.
"""

from __future__ import annotations

import errno
import itertools
import json
import os
import platform
import resource
import selectors
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

from reflectrl.core import InvalidInput, WorkFailed
from reflectrl.envs.auto_explore.tree import Entries, Limits, used_inodes

MOUNT = PurePosixPath("/repository")
"""Path of the copy as a program sees it."""
TICK_S = 0.02
"""Seconds between two checks of the resources that a program uses."""
BLIND_S = 3.0
"""Seconds after which a program whose resources cannot be read is stopped."""
DYING_S = 30.0
"""Maximum seconds until a killed program has ended."""
MAX_OPEN_FILES = 256
NICENESS = 10
SHARED_MEMORY_BYTES = 16 * 1024**2
MAX_LOCKS = 1000
"""Maximum number of locks on files, which the kernel holds in memory without a limit of its own."""
SEND_BUFFER = Path("/proc/sys/net/core/wmem_default")
SEND_BUFFER_BYTES = 212_992
"""Linux's own value of ``SEND_BUFFER``, for a container in which it cannot be read."""
IN_MEMORY = ("tmp", "dev/shm")
"""Folders outside the copy that a program may write to; they are deleted with it."""

MACHINES = ("x86_64", "aarch64")
"""Architectures for which the filter has the right numbers of system calls."""

_ENVIRONMENT = {
    "HOME": "/tmp",
    "LANG": "C.UTF-8",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "PIP_NO_CACHE_DIR": "1",
    "PIP_NO_INDEX": "1",  # or pip would retry to reach a network that does not exist
    "PIP_NO_INPUT": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONHASHSEED": "0",
    "PYTHONUNBUFFERED": "1",
}


@dataclass(frozen=True)
class Finished:
    """Result of a program."""

    output: str
    """Standard output and error, in their order."""
    failed: bool
    notice: str
    """Sentence about the program, such as why it was stopped; may be empty."""
    written: int
    """Number of bytes that it was seen to write."""


@dataclass(frozen=True)
class _Use:
    """Resources that a program and all its children hold together."""

    processes: int = 0
    memory: int = 0
    written: int = 0
    temporary: int = 0
    """Number of files and folders in memory."""
    locks: int = 0
    """Number of locks on files; not counted beyond one more than is allowed."""


def run_program(
    arguments: Sequence[str],
    root: Path,
    cwd: PurePosixPath,
    *,
    limits: Limits,
    writable: bool,
    write_bytes: int,
    entries: int,
) -> Finished:
    """Run python with ``arguments`` on the copy at ``root``.

    The program may write ``write_bytes`` bytes there; in the end the copy may hold ``entries`` files and folders.

    Raises:
        InvalidInput: bubblewrap or libseccomp is missing, or cannot work here.
        WorkFailed: the program could not be ended.
    """
    bubblewrap = shutil.which("bwrap")
    if bubblewrap is None:
        raise InvalidInput("python and pip need bubblewrap, which was not found: install the package 'bubblewrap'.")
    machine = platform.machine()
    if machine not in MACHINES:
        raise InvalidInput(f"python and pip run on {' and '.join(MACHINES)} only; this is {machine!r}.")
    held = Entries(root, entries)
    if held.full:
        raise InvalidInput("the files and folders that may be made here are used up; nothing was done.")
    with ExitStack() as stack:
        (status, report), (gate, release), (filters, fill) = (_pipe(stack) for _ in range(3))
        write_filter(fill)
        fill.close()
        command = [bubblewrap, *_walls(root, cwd, writable=writable, scratch=write_bytes)]
        command += ["--json-status-fd", f"{report.fileno()}", "--block-fd", f"{gate.fileno()}"]
        command += ["--seccomp", f"{filters.fileno()}", "--", str(_interpreter()), *arguments]
        given = (report, gate, filters)
        started = stack.enter_context(
            subprocess.Popen(
                command,
                env={},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=[end.fileno() for end in given],
            )
        )
        stack.callback(started.kill)
        for end in given:
            end.close()
        return _watch(started, status, release, limits, write_bytes, held)


def _watch(
    started: subprocess.Popen[bytes],
    statuses: IO[bytes],
    release: IO[bytes],
    limits: Limits,
    write_bytes: int,
    held: Entries,
) -> Finished:
    """Start the program, and wait for its end or for a reason to end it."""
    assert started.stdout is not None  # it is a pipe
    try:
        status = json.loads(statuses.readline())
        child = status["child-pid"]
        handle = os.pidfd_open(child)
    except (ValueError, ProcessLookupError):
        raise _cannot_start(started.stdout.read()) from None
    try:
        with suppress(ProcessLookupError, BrokenPipeError):  # it may have failed already
            _limit(child, limits, write_bytes)
            release.write(b"1")
        output, why, written = _follow(started.stdout.fileno(), handle, status, limits, write_bytes, held)
    finally:
        _end(handle)
        os.close(handle)
    started.wait(DYING_S)
    codes = [json.loads(line).get("exit-code") for line in statuses]
    if not why and not codes:
        raise _cannot_start(output)
    if not why and codes[-1]:
        why = f"ended with code {codes[-1]}"
    return Finished(output.decode("utf-8", "replace"), bool(why), f"({why})" if why else "", written)


def _follow(
    pipe: int, handle: int, status: dict[str, Any], limits: Limits, write_bytes: int, held: Entries
) -> tuple[bytes, str, int]:
    """Collect output until the program has ended, or until there is a reason to end it."""
    output, written, seen = bytearray(), 0, False
    begun = time.monotonic()
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        selector.register(handle, selectors.EVENT_READ)
        while True:
            ready = {key.fd for key, _ in selector.select(TICK_S)}
            if pipe in ready:
                data = os.read(pipe, 65_536)
                output += data
                if not data:
                    selector.unregister(pipe)
            elif handle in ready:
                return bytes(output), "", written
            use = _use(status["child-pid"], status.get("pid-namespace"), limits.processes)
            written = max(written, use.written)
            seen = seen or use.processes > 0
            took = time.monotonic() - begun
            for reason, holds in (
                (f"printed more than {limits.output:,} characters", len(output) > 4 * limits.output),
                (f"took longer than {limits.seconds:g} seconds", took > limits.seconds),
                (f"ran more than {limits.processes:,} processes and threads", use.processes > limits.processes),
                (f"used more than {limits.memory_bytes:,} bytes of memory", use.memory > limits.memory_bytes),
                (f"held more than {MAX_LOCKS:,} locks on files", use.locks > MAX_LOCKS),
                (f"wrote more than {write_bytes:,} bytes", written > write_bytes),
                (f"made more than {limits.write_files:,} files and folders", use.temporary > limits.write_files),
                ("made more files and folders than may be made here", held.too_many()),
                ("could not be watched", not seen and took > BLIND_S),
            ):
                if holds:
                    return bytes(output), f"stopped: it {reason}", written


def _use(child: int, namespace: int | None, most: int) -> _Use:
    """Read the resources of all processes of the sandbox; ``child`` is the first of them, seen from here.

    Of more than ``most`` processes only the number is read, because each further read gives a fork bomb time to grow.
    """
    proc = Path(f"/proc/{child}/root/proc")
    threads = memory = written = temporary = locks = 0
    with suppress(OSError):  # not mounted yet, or over already
        if (proc / "1/ns/pid").stat().st_ino != namespace:
            return _Use()
        processes = [path for path in proc.iterdir() if path.name.isdigit()]
        if len(processes) > most:
            return _Use(len(processes))
        for process in processes:
            with suppress(OSError):  # it has ended
                status, io = _fields(process / "status"), _fields(process / "io")
                threads += status.get("Threads", 1)
                memory += 1024 * sum(status.get(name, 0) for name in ("RssAnon", "RssShmem", "VmPTE"))
                # A parent's count takes over that of the children it has waited for.
                written += max(io["wchar"], io["write_bytes"])
        temporary = sum(used_inodes(proc.parent / place) or 0 for place in IN_MEMORY)
        memory += _memory_of_sockets(proc)
        with (proc / "locks").open("rb") as held:
            locks = sum(1 for _ in itertools.islice(held, MAX_LOCKS + 1))
    return _Use(threads, memory, written, temporary, locks)


def _memory_of_sockets(proc: Path) -> int:
    """Return the most bytes that the kernel may hold for all sockets of the sandbox's network, in any state.

    The number of open files does not bound it: messages wait in a queue after their sender is closed, and a socket that
    is not accepted yet belongs to no process. Pipes, epoll and mappings have limits of the kernel's own.
    """
    try:
        buffer = int(SEND_BUFFER.read_text(encoding="ascii"))
    except OSError:
        buffer = SEND_BUFFER_BYTES
    most = 2 * buffer  # a buffer with any room left takes one more message, as large as the buffer at most
    return most * _fields(proc / "1/net/sockstat", word=2)["sockets"]


def _fields(path: Path, word: int = 1) -> dict[str, int]:
    """Return the numbers in a file of lines such as ``Threads: 1`` or ``RssAnon: 12 kB``."""
    lines = (line.split() for line in path.read_text(encoding="utf-8", errors="replace").splitlines())
    return {words[0].rstrip(":"): int(words[word]) for words in lines if len(words) > word and words[word].isdecimal()}


def _limit(child: int, limits: Limits, write_bytes: int) -> None:
    """Set the limits that the system enforces for each process; children inherit them."""
    for what, most in (
        (resource.RLIMIT_AS, limits.memory_bytes),
        (resource.RLIMIT_FSIZE, write_bytes),
        (resource.RLIMIT_NOFILE, MAX_OPEN_FILES),
        (resource.RLIMIT_CORE, 0),
    ):
        _, hard = resource.prlimit(child, what)
        least = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.prlimit(child, what, (least, least))
    os.setpriority(os.PRIO_PROCESS, child, max(NICENESS, os.getpriority(os.PRIO_PROCESS, child)))


def _end(handle: int) -> None:
    """Kill the first process of the namespace, and with it all others, and wait until they have ended."""
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(handle, signal.SIGKILL)
    with selectors.DefaultSelector() as selector:
        selector.register(handle, selectors.EVENT_READ)
        if not selector.select(DYING_S):
            raise WorkFailed(f"a killed program is still there after {DYING_S:g} seconds; look for it with ps.")


def _cannot_start(output: bytes) -> InvalidInput:
    said = " ".join(output.decode("utf-8", "replace").split())
    return InvalidInput(f"python and pip cannot run here: bubblewrap 0.8 or newer is needed, and it says {said!r}.")


def _pipe(stack: ExitStack) -> tuple[IO[bytes], IO[bytes]]:
    """Return both ends of a pipe, closed with ``stack`` at the latest."""
    read, write = os.pipe()
    return stack.enter_context(os.fdopen(read, "rb")), stack.enter_context(os.fdopen(write, "wb", buffering=0))


def _interpreter() -> Path:
    """Return the path of the interpreter itself, the target of a virtual environment's link."""
    return Path(sys.executable).resolve()


def _walls(root: Path, cwd: PurePosixPath, *, writable: bool, scratch: int) -> Iterator[str]:
    """Yield bubblewrap's options, which define the program's surroundings."""
    yield from ("--unshare-all", "--unshare-user", "--disable-userns", "--uid", "65534", "--gid", "65534")
    yield from ("--hostname", "sandbox", "--die-with-parent", "--new-session", "--clearenv")
    for name, value in _ENVIRONMENT.items():
        yield from ("--setenv", name, value)
    yield from ("--setenv", "PATH", f"{_interpreter().parent}:/usr/bin:/bin")
    yield from _system()
    yield from _packages(root)
    # Read-only, or a program that root starts could write settings of this machine's kernel in /proc/sys.
    yield from ("--proc", "/proc", "--remount-ro", "/proc", "--dev", "/dev", "--remount-ro", "/dev")
    for place, size in zip(IN_MEMORY, (scratch, SHARED_MEMORY_BYTES), strict=True):
        yield from ("--size", f"{size}", "--tmpfs", f"/{place}")
    yield from ("--bind" if writable else "--ro-bind", str(root), str(MOUNT), "--remount-ro", "/")
    yield from ("--chdir", str(MOUNT / cwd))


def _system() -> Iterator[str]:
    """Yield the system's programs and libraries; folders that are links today stay links."""
    yield from ("--ro-bind", "/usr", "/usr")
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        path = Path("/", name)
        if path.is_symlink():
            yield from ("--symlink", str(path.readlink()), str(path))
        elif path.is_dir():
            yield from ("--ro-bind", str(path), str(path))


def _packages(root: Path) -> Iterator[str]:
    """Yield the interpreter's own folder, and the packages of this process's virtual environment, if any."""
    base = Path(sys.base_prefix).resolve()
    packages = [Path(sysconfig.get_path(name)).resolve() for name in ("purelib", "platlib")]
    outside: list[Path] = []
    for path in dict.fromkeys([base, *packages]):
        if any(path.is_relative_to(known) for known in (Path("/usr"), *outside)):
            continue
        if any(place.is_relative_to(path) for place in (Path("/etc"), Path.home(), root)):
            raise InvalidInput(f"python and pip cannot run here: {path}, where python is, holds more than python.")
        outside.append(path)
        yield from ("--ro-bind", str(path), str(path))
    yield from ("--setenv", "PYTHONPATH", ":".join(dict.fromkeys(map(str, packages))))


# Left out are calls that reach beyond the sandbox (keyrings, other processes, the kernel's settings), those that take
# memory or disk space without a trace in ``/proc``, and whatever python can do without.
_FILES = """
    access chdir chmod close close_range copy_file_range creat dup dup2 dup3 faccessat faccessat2 fadvise64
    fchdir fchmod fchmodat fcntl fdatasync fgetxattr flistxattr flock fstat fstatfs fsync ftruncate futimesat
    getcwd getdents getdents64 getxattr lgetxattr link linkat listxattr llistxattr lseek lstat mkdir mkdirat
    mknod mknodat newfstatat open openat pread64 preadv preadv2 pwrite64 pwritev pwritev2 read readlink
    readlinkat readv rename renameat renameat2 rmdir sendfile stat statfs statx symlink symlinkat truncate
    umask unlink unlinkat utime utimensat utimes write writev
"""
_MEMORY = "brk madvise membarrier mmap mprotect mremap msync munmap"
_PROCESSES = """
    arch_prctl execve exit exit_group fork futex get_robust_list getegid geteuid getgid getgroups getpgid
    getpgrp getpid getppid getpriority getrandom getresgid getresuid getrlimit getrusage getsid gettid getuid
    kill pause prlimit64 restart_syscall rseq rt_sigaction rt_sigpending rt_sigprocmask rt_sigreturn
    rt_sigsuspend rt_sigtimedwait sched_get_priority_max sched_get_priority_min sched_getaffinity
    sched_getparam sched_getscheduler sched_setaffinity sched_yield set_robust_list set_tid_address setpgid
    setrlimit setsid sigaltstack sysinfo tgkill times tkill uname vfork wait4 waitid
"""
_TIME = "alarm clock_getres clock_gettime clock_nanosleep getitimer gettimeofday nanosleep setitimer time"
_WAITING = """
    epoll_create epoll_create1 epoll_ctl epoll_pwait epoll_wait eventfd eventfd2 pipe pipe2 poll ppoll pselect6 select
"""
_LOCAL_SOCKETS = """
    accept accept4 bind connect getpeername getsockname getsockopt listen recvfrom recvmsg sendmsg sendto shutdown
"""
ALLOWED = frozenset(f"{_FILES} {_MEMORY} {_PROCESSES} {_TIME} {_WAITING} {_LOCAL_SOCKETS}".split())
"""Calls that are allowed whatever their arguments."""

AF_UNIX = 1
MAKERS_OF_SOCKETS = ("socket", "socketpair")
"""Calls that are allowed for sockets of this machine (AF_UNIX) only: others may reach the network or a hypervisor."""
CLONE = "clone"
NAMESPACES = 0x7E020000
"""Flags of ``clone`` that make new namespaces, which are refused."""
IOCTL = "ioctl"
IOCTLS = (0x5401, 0x802C542A, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451, 0x40049409)
"""TCGETS, TCGETS2, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX, FICLONE: what python asks of open files."""


def write_filter(file: IO[bytes]) -> None:
    """Write the filter to ``file`` as the program that the kernel takes.

    Raises:
        InvalidInput: libseccomp is missing.
    """
    try:
        import pyseccomp as seccomp
    except (ImportError, RuntimeError, OSError) as error:
        raise InvalidInput(
            f"python and pip need libseccomp, which cannot be used ({error}): install the package 'libseccomp2' of the "
            "system and 'pyseccomp' of the Python package index."
        ) from error
    rules = seccomp.SyscallFilter(seccomp.ERRNO(errno.ENOSYS))
    for name in sorted(ALLOWED):  # a call that this architecture does not have is passed over
        rules.add_rule(seccomp.ALLOW, name)
    for name in MAKERS_OF_SOCKETS:
        rules.add_rule(seccomp.ALLOW, name, seccomp.Arg(0, seccomp.EQ, AF_UNIX))
    rules.add_rule(seccomp.ALLOW, CLONE, seccomp.Arg(0, seccomp.MASKED_EQ, NAMESPACES, 0))
    for request in IOCTLS:
        rules.add_rule(seccomp.ALLOW, IOCTL, seccomp.Arg(1, seccomp.EQ, request))
    rules.export_bpf(file)
