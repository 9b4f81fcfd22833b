"""Every known way out of a sandbox by a program: nothing outside is reached, nothing hangs or stays behind."""

from __future__ import annotations

import os
import platform
import re
import socket
import time
import uuid
from pathlib import Path

import pytest
from bubblewrap import NEEDED, programs_work
from sandbox_world import TOKEN

from reflectrl.envs.auto_explore import programs
from reflectrl.envs.auto_explore.sandbox import Limits
from reflectrl.envs.auto_explore.tree import Entries

pytestmark = pytest.mark.usefixtures("deadline")
needs_bubblewrap = pytest.mark.skipif(not programs_work(), reason=NEEDED)

TRY = """
import os
def attempt(name, act):
    try:
        print(name, 'DONE', act(), flush=True)
    except Exception as error:
        print(name, type(error).__name__, flush=True)
"""
"""Attempts print DONE when they succeed, and nothing but the kind of their error otherwise."""

FORBIDDEN = {
    "read_passwd": "open('/etc/passwd').read()",
    "read_secret": "open('{outside}/secret.txt').read()",
    "read_repository": "open('{repository}/.env').read()",
    "read_folder_of_copies": "os.listdir('{copies}')",
    "read_home": "os.listdir('/home')",
    "read_through_the_first_process": "open('/proc/1/root/etc/passwd').read()",
    "write_memory_of_the_first_process": "os.open('/proc/1/mem', os.O_WRONLY)",
    "read_system_settings": "os.listdir('/sys')",
    "write_outside": "open('{outside}/secret.txt', 'a')",
    "write_root": "open('/x', 'w')",
    "write_usr": "open('/usr/x', 'w')",
    "write_interpreter": "open(os.__file__, 'a')",
    "write_devices": "open('/dev/x', 'w')",
    "write_kernel_settings": "os.open('/proc/sys/kernel/core_pattern', os.O_WRONLY)",  # nothing is written
    "write_oom_score": "os.open('/proc/self/oom_score_adj', os.O_WRONLY)",
    "make_device": "os.mknod('/repository/zero', 0o20666, os.makedev(1, 5))",
    "move_the_repository": "os.rename('/repository', '/tmp/moved')",
    "link_out_hard": "os.link('/usr/bin/env', '/repository/env')",
    "kill_the_tester": "os.kill({pid}, 9)",
    "trace_the_first_process": "__import__('ctypes').CDLL(None).ptrace(16, 1, 0, 0) and 1 / 0",
    "new_namespace": "__import__('ctypes').CDLL(None).unshare(0x10000000) and 1 / 0",
    "mount": "__import__('ctypes').CDLL(None).mount(b'x', b'/tmp', b'tmpfs', 0, None) and 1 / 0",
    "become_root": "os.setuid(0)",
    "untraced_memory": "os.memfd_create('x')",
    "huge_sparse_file": "open('/repository/sparse', 'wb').truncate(10 << 30)",
    "too_much_shared_memory": "open('/dev/shm/x', 'wb').write(bytes(20 << 20))",
}


@needs_bubblewrap
def test_a_program_cannot(world):
    """One program makes all attempts, so that each starts with what those before it may have gained."""
    world.open(programs=True)
    places = {"{repository}": world.repository, "{copies}": world.folder / "copies", "{pid}": os.getpid()}
    lines = "".join(f"attempt({name!r}, lambda: {attempt})\n" for name, attempt in FORBIDDEN.items())
    for word, place in places.items():
        lines = lines.replace(word, str(place))
    result = world.python(TRY + lines)
    ends = dict(line.split(" ", 1) for line in result.output.splitlines())
    assert list(ends) == list(FORBIDDEN), result.output
    assert {name: end for name, end in ends.items() if not end.endswith("Error")} == {}


@needs_bubblewrap
def test_a_program_reaches_no_network(world):
    world.open(programs=True)
    abstract = f"\0{uuid.uuid4()}"
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as local:
        local.bind(abstract)
        local.listen()
        port = server.getsockname()[1]
        result = world.python(
            f"{TRY}import socket\nattempt('tcp', lambda: socket.create_connection(('127.0.0.1', {port}), 2))\n"
            f"attempt('unix', lambda: socket.socket(socket.AF_UNIX).connect({abstract!r}))\n"
            "attempt('dns', lambda: socket.getaddrinfo('example.org', 80))\n"
        )
        assert result.output == "tcp OSError\nunix ConnectionRefusedError\ndns gaierror\n"
        for listening in (server, local):
            listening.settimeout(0.1)
            with pytest.raises(TimeoutError):
                listening.accept()


CALLS = """
import ctypes, errno
call = ctypes.CDLL(None, use_errno=True).syscall
def refused(number, *arguments):
    return call(number, *(arguments or [0] * 6)) == -1 and ctypes.get_errno() == errno.ENOSYS
"""

DANGEROUS = """
add_key keyctl request_key bpf ptrace userfaultfd io_uring_setup perf_event_open process_vm_readv process_vm_writev kcmp
pidfd_getfd open_by_handle_at name_to_handle_at mount umount2 pivot_root unshare setns clone3 fsopen open_tree
move_mount chroot shmget msgget semget mq_open memfd_create memfd_secret fallocate splice vmsplice init_module
kexec_load reboot swapon syslog settimeofday quotactl personality setuid capset setxattr seccomp prctl inotify_init1
fanotify_init mlock mbind
"""


def number_of(call: str) -> int:
    import pyseccomp

    return pyseccomp.resolve_syscall(pyseccomp.Arch.NATIVE, call)


@needs_bubblewrap
def test_a_program_makes_no_system_call_that_is_not_listed(world):
    world.open(programs=True)
    partly = {*programs.MAKERS_OF_SOCKETS, programs.CLONE, programs.IOCTL}
    listed = {number_of(call) for call in programs.ALLOWED | partly}
    listed |= {335, 336}  # uretprobe and uprobe, which newer kernels filter for no program, and which kill their caller
    reachable = world.python(f"{CALLS}print([n for n in range(600) if n not in {listed} and not refused(n)])")
    assert reachable.output == "[]\n"
    assert listed.isdisjoint(map(number_of, DANGEROUS.split()))
    vsock, netlink, everywhere, terminal = 40, 16, 0x10000000, 0x5412
    harmful = world.python(  # what is listed is for harmless purposes only
        f"{CALLS}"
        f"for family in ({vsock}, {netlink}, 2, 10, 17, 38): print(refused({number_of('socket')}, family, 1, 0))\n"
        f"print(refused({number_of('socketpair')}, {vsock}, 1, 0, 0))\n"
        f"print(refused({number_of('clone')}, {everywhere} | 17, 0, 0, 0, 0))\n"
        f"print(refused({number_of('ioctl')}, 0, {terminal}, 0))\n"
    )
    assert harmful.output == "True\n" * 9
    if platform.machine() == "x86_64":  # other machines have one way to number their calls
        in_32_bits = 0x40000000 | number_of("getpid")
        killed = world.python(f"{CALLS}print('DONE', call({in_32_bits}))")
        assert killed.failed
        assert "DONE" not in killed.output


@needs_bubblewrap
def test_a_program_inherits_no_secret(world, monkeypatch):
    monkeypatch.setenv("API_KEY", TOKEN)
    world.open(programs=True)
    with (world.outside / "secret.txt").open("rb") as secret:
        os.set_inheritable(secret.fileno(), True)
        result = world.python(
            "import os\nfor number in range(3, 50):\n"
            "    try: print('GOT', number, os.pread(number, 99, 0))\n    except OSError: pass\n"
            "print(os.environ, open('/proc/1/environ').read(), os.listdir('/proc'))"
        )
    assert "GOT" not in result.output
    assert "PYTHONHASHSEED" in result.output


def is_running(mark: str) -> bool:
    """Return whether a process of this machine has ``mark`` in its command line."""
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and mark.encode() in (process / "cmdline").read_bytes():
                return True
        except (FileNotFoundError, ProcessLookupError):
            continue
    return False


GREEDY = {
    "endless_forks": ("end = time.time() + 5\nwhile time.time() < end: os.fork()", "processes and threads"),
    "memory": ("x = bytearray(5 << 30)", "MemoryError"),
    "memory_of_many": ("for _ in range(3): os.fork()\nx = b'x' * (100 << 20)\ntime.sleep(60)", "bytes of memory"),
    "endless_output": ("while True: print('x' * 1000)", "printed more than 4,000 characters"),
    # One process with three open files: what waits in a queue is not theirs.
    "queued_messages": (
        "import socket\nqueue = socket.socket(1)\nqueue.bind('/tmp/queue')\nqueue.listen(4096)\n"
        "for _ in range(4096):\n    sender = socket.socket(1)\n    sender.connect('/tmp/queue')\n"
        "    sender.send(bytes(100_000))\n    sender.close()\ntime.sleep(60)",
        "bytes of memory",
    ),
    "locks": (
        "import fcntl\nfile = open('/tmp/x', 'wb')\n"
        "for n in range(0, 10**6, 2): fcntl.lockf(file, fcntl.LOCK_EX, 1, n)\ntime.sleep(60)",
        "1,000 locks",
    ),
    "deaf": (
        "for n in {*range(1, 32)} - {9, 19}: signal.signal(n, signal.SIG_IGN)\ntime.sleep(60)",
        "longer than 1 seconds",
    ),
    # Stopped by the kernel's limit for a file if that comes before the next look at what was written.
    "huge_file": ("f = open('huge', 'wb')\nwhile True: f.write(bytes(1 << 20))", "bytes|File too large"),
    # Looked at from time to time, so that how much more it writes is a matter of its pace.
    "many_files": ("for n in range(10**6): time.sleep(0.02), open(f'{n}', 'wb').write(bytes(1 << 20))", "bytes"),
    "files_in_memory": ("for n in range(10**6): open(f'/tmp/{n}', 'wb').write(bytes(1 << 20))", ""),
}


@pytest.mark.slow
@needs_bubblewrap
@pytest.mark.parametrize(("code", "reason"), [pytest.param(*case, id=name) for name, case in GREEDY.items()])
def test_a_greedy_program_is_stopped(world, code, reason):
    seconds = 1 if "longer" in reason else 100
    world.open(programs=True, limits=Limits(seconds=seconds, memory_bytes=400 << 20, write_bytes=20 << 20))
    mark = str(uuid.uuid4())
    result = world.python(f"import os, signal, threading, time\n{code}\n# {mark}")
    assert result.failed
    assert re.search(reason, result.output)
    assert not is_running(mark)
    assert sum(path.stat().st_size for path in world.sandbox.root.iterdir()) < 60 << 20


@pytest.mark.slow
@needs_bubblewrap
def test_a_program_may_use_sockets_and_locks_as_libraries_do(world):
    world.open(programs=True)
    result = world.python(
        "import asyncio, os, sqlite3, time\n"
        "async def main(): return await asyncio.gather(*(asyncio.to_thread(time.sleep, 0.1) for _ in range(9)))\n"
        "base = sqlite3.connect('shop.db')\nbase.execute('create table tea (price)')\nbase.commit()\n"
        "print(len(asyncio.run(main())), base.execute('select count(*) from tea').fetchall())"
    )
    assert result.output == "9 [(0,)]\n"


CROWDS = {
    "hidden": "os.mkdir('.x')\nfor n in range(300): open(f'.x/{n}', 'w').close()",
    "deep": "for n in range(300): os.mkdir('d'); os.chdir('d')",
    "in_a_closed_folder": "os.mkdir('x')\nfor n in range(300): os.mkdir(f'x/{n}')\nos.chmod('x', 0)",
    "in_memory": "for n in range(300): os.mkdir(f'/tmp/{n}')",
    "in_shared_memory": "for n in range(300): os.mkdir(f'/dev/shm/{n}')",
}


@needs_bubblewrap
@pytest.mark.parametrize("place", CROWDS)
def test_a_program_that_makes_many_files_is_stopped(world, place):
    world.open(programs=True, limits=Limits(write_files=200))
    result = world.python(f"import os, time\n{CROWDS[place]}\ntime.sleep(60)")
    assert result.failed
    assert "files and folders" in result.output
    again = world.python("1")
    assert again.failed == ("memory" not in place), "what is in memory is gone"
    assert not again.failed or "are used up" in again.output


@pytest.mark.slow
def test_files_that_others_make_or_remove_are_not_counted(world):
    world.open()
    others = [world.folder / "others" / str(number) for number in range(2000)]
    held = Entries(world.sandbox.root, 200)
    for other in others:
        other.mkdir(parents=True)
    assert not held.too_many()
    held = Entries(world.sandbox.root, 200)
    for other in others:
        other.rmdir()
    for number in range(300):
        (world.sandbox.root / str(number)).mkdir()
    end = time.monotonic() + 10
    while not held.too_many():
        assert time.monotonic() < end, "what was removed elsewhere hides what was made here"


@needs_bubblewrap
def test_a_program_does_not_outlive_its_command(world):
    world.open(programs=True)
    mark = str(uuid.uuid4())
    result = world.python(
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n"
        "        for number in range(3): os.close(number)\n"
        f"        while True: open('/repository/alive', 'a').write('x')  # {mark}"
    )
    assert not result.failed
    assert not is_running(mark)


@needs_bubblewrap
def test_a_program_may_delete_the_copy_and_nothing_else(world):
    world.open(programs=True)
    world.python("import os, shutil\nshutil.rmtree('/repository', ignore_errors=True)\nos.remove(os.__file__)")
    assert Path(os.__file__).exists()
    assert world.run("ls").output == "this folder is empty."
    assert world.sandbox.changes() == {"a.txt": None, "src/b.txt": None}
    assert not world.run("python -c 1").failed
