"""Every known way out of a sandbox: nothing outside is read or written, nothing hangs or stays behind."""

from __future__ import annotations

import os
import platform
import signal
import socket
import stat
import subprocess
import tempfile
import threading
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import pytest
from bubblewrap import NEEDED, programs_work

from reflectrl.core import InvalidInput, WorkFailed
from reflectrl.envs.auto_explore import calls
from reflectrl.envs.auto_explore.entries import Entries
from reflectrl.envs.auto_explore.sandbox import Entry, Limits, Result, Sandbox, quote

TOKEN = "the-token-that-nobody-may-read"
DEADLINE = 300.0
"""Seconds within which every attempt is over, on a busy machine."""


needs_bubblewrap = pytest.mark.skipif(not programs_work(), reason=NEEDED)


def picture(folder: Path) -> dict[str, tuple[int, int, bytes | str]]:
    """Everything below ``folder``: kind and mode, time of change, content."""
    found: dict[str, tuple[int, int, bytes | str]] = {}
    pending = [folder]
    while pending:
        for path in pending.pop().iterdir():
            status = path.lstat()
            content: bytes | str = b""
            if stat.S_ISDIR(status.st_mode):
                pending.append(path)
            elif stat.S_ISLNK(status.st_mode):
                content = str(path.readlink())
            elif stat.S_ISREG(status.st_mode) and status.st_size < 100_000:
                content = path.read_bytes()
            found[str(path)] = (status.st_mode, status.st_mtime_ns, content)
    return found


@dataclass
class World:
    """A repository, a folder beside it that is none of its business, and a sandbox full of traps."""

    folder: Path
    sandbox: Sandbox = field(init=False)

    @property
    def outside(self) -> Path:
        return self.folder / "outside"

    @property
    def repository(self) -> Path:
        return self.folder / "repository"

    @property
    def up(self) -> str:
        """The way from the copy to the secret, through the folders above."""
        return os.path.relpath(self.outside, self.sandbox.root)

    def open(self, **options) -> None:
        self.sandbox = Sandbox(self.repository, **options)
        self.before = picture(self.outside), picture(self.repository)

    def run(self, command: str) -> Result:
        """Play a command whose result is checked: nothing of the outside, nothing that a terminal obeys."""
        result = self.sandbox.run(command.replace("{up}", self.up).replace("{outside}", str(self.outside)))
        assert TOKEN not in result.output
        assert "root:" not in result.output, "that is /etc/passwd"
        assert all(letter.isprintable() or letter in "\n\t\N{REPLACEMENT CHARACTER}" for letter in result.output)
        assert len(result.output) < 5000
        return result

    def python(self, code: str) -> Result:
        return self.run(f"python -c {quote(code)}")

    def check(self) -> None:
        """The end of every attempt."""
        assert (picture(self.outside), picture(self.repository)) == self.before

    def close(self) -> None:
        self.check()
        self.sandbox.close()
        assert list((self.folder / "copies").iterdir()) == []


@pytest.fixture(autouse=True)
def deadline():
    def late(*_):
        raise TimeoutError(f"an attempt has not come back within {DEADLINE} seconds")

    former = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, DEADLINE)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, former)


def make_world(folder: Path) -> World:
    """A repository, a secret, and a place for copies."""
    world = World(folder)
    for path, text in {
        "outside/secret.txt": TOKEN,
        "outside/f.txt": TOKEN,
        "repository/src/b.txt": "b",
        "repository/a.txt": "a",
        "repository/.env": TOKEN,
        "repository/.git/config": TOKEN,
    }.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    (folder / "copies").mkdir()
    return world


@pytest.fixture
def world(tmp_path, monkeypatch):
    """A world of one's own, to be opened; ``close`` looks at it when the test is over."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "copies"))
    made = make_world(tmp_path)
    yield made
    made.close()


@pytest.fixture(scope="module")
def traps(tmp_path_factory):
    """Traps laid in the copy itself, as a program or a race would lay them: the copy would not have taken them over."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        folder = tmp_path_factory.mktemp("traps")
        monkeypatch.setattr(tempfile, "tempdir", str(folder / "copies"))
        world = make_world(folder)
        world.open()
        monkeypatch.chdir(world.sandbox.root)  # the path of a socket is short
        lay_traps(world)
    yield world
    world.close()


@pytest.fixture
def trapped(traps):
    """The world of traps, looked at after every attempt."""
    yield traps
    traps.check()
    traps.sandbox.run("cd /")


def lay_traps(world: World) -> None:
    root = world.sandbox.root
    for name, target in {
        "out_file": f"{world.outside}/secret.txt",
        "out_folder": os.path.relpath(world.outside, root),
        "chain0": "chain1",
        "chain1": "src/../chain2",
        "chain2": f"{world.up}/secret.txt",
        "src/up": "../..",
        "above": "..",
        "loop": "loop",
        "ping": "pong",
        "pong": "ping",
        "etc": "/etc",
        "system": "/proc/self/root",
        "myself": "/proc/self/cwd",
        "to_hidden": ".env",
        "dangling": f"{world.up}/made.txt",
        "absolute_inside": f"{root}/a.txt",
    }.items():
        (root / name).symlink_to(target)
    (root / ".env").write_text(TOKEN)
    os.link(world.outside / "secret.txt", root / "hard")
    os.mkfifo(root / "fifo")
    (root / "ansi.txt").write_text("\x1b]0;title\x07\x1b[2J\x1b[8mhidden\r\n\x9b31m")
    (root / "\x1b[31mred").write_text("x")
    (root / "\udcff\udcfe").write_text("x")
    (root / "line\nbreak").write_text("x")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket")
    if os.geteuid() == 0:
        os.mknod("zero", 0o600 | stat.S_IFCHR, os.makedev(1, 5))
    else:
        (root / "zero").symlink_to("/dev/zero")


LONG = "x" * 256
FAR = "x/" * 2500

READS = {
    "parent": "cat {up}/secret.txt",
    "parent_through_a_folder": "cat src/../{up}/secret.txt",
    "parent_of_what_is_missing": "cat missing/../../{up}/secret.txt",
    "parent_many_times": "cat " + "../" * 60 + "etc/passwd",
    "parent_quoted": "cat '{up}/secret.txt'",
    "parent_escaped": "cat \\.\\./{up}/secret.txt",
    "absolute": "cat {outside}/secret.txt",
    "etc_passwd": "cat /etc/passwd",
    "two_slashes": "cat //etc/passwd",
    "three_slashes": "cat ///etc//passwd",
    "proc_root": "cat /proc/self/root/etc/passwd",
    "proc_environ": "cat /proc/self/environ",
    "dev_zero": "cat /dev/zero",
    "dev_stdin": "cat /dev/stdin",
    "percent_encoded": "cat %2e%2e/%2e%2e/etc/passwd",
    "overlong_dots": "cat \uff0e\uff0e/secret.txt",
    "backslashes": "cat '..\\..\\etc\\passwd'",
    "home": "cat ~/.ssh/id_rsa",
    "home_of_root": "cat ~root/.bashrc",
    "file_url": "cat file:///etc/passwd",
    "head": "head -n 5 {up}/secret.txt",
    "tail": "tail -n 5 /../{up}/secret.txt",
    "id_outside": "id {up}/secret.txt",
    "id_absolute": "id /etc/passwd",
    "cd_up": "cd ..",
    "cd_far_up": "cd {up}",
    "cd_absolute": "cd {outside}",
    "cd_minus": "cd -",
    "ls_up": "ls ..",
    "ls_absolute": "ls {outside}",
    "link_to_a_file": "cat out_file",
    "link_to_a_folder": "cat out_folder/secret.txt",
    "link_after_a_parent": "cat src/../out_file",
    "link_cd": "cd out_folder",
    "link_ls": "ls out_folder",
    "link_ls_inside_parent": "ls src/up",
    "link_head": "head out_file",
    "link_tail": "tail out_file",
    "link_id": "id out_file",
    "link_chain": "cat chain0",
    "link_to_itself": "cat loop",
    "link_to_each_other": "cd ping",
    "link_to_above": "cat above/secret.txt",
    "link_to_above_and_back": "cat above/copy/a.txt",
    "link_to_etc": "cat etc/passwd",
    "link_to_proc_root": "cat system/etc/passwd",
    "link_to_proc_cwd": "ls myself",
    "link_to_a_hidden_file": "cat to_hidden",
    "link_absolute_but_inside": "cat absolute_inside",
    "hard_link": "cat hard",
    "hard_link_head": "head hard",
    "hard_link_id": "id hard",
    "fifo": "cat fifo",
    "fifo_tail": "tail fifo",
    "socket": "cat socket",
    "device": "cat zero",
    "device_head": "head -n 1 zero",
    "hidden_file": "cat .env",
    "hidden_file_through_a_parent": "cat src/../.env",
    "hidden_folder": "cat .git/config",
    "hidden_ls": "ls .git",
    "newline": "ls\ncat {outside}/secret.txt",
    "semicolon": "ls; cat {outside}/secret.txt",
    "pipe": "ls | cat {outside}/secret.txt",
    "and": "ls && cat {outside}/secret.txt",
    "background": "cat {outside}/secret.txt &",
    "backtick": "cat `echo {outside}/secret.txt`",
    "substitution": "cat $(echo {outside}/secret.txt)",
    "input": "cat < {outside}/secret.txt",
    "input_without_a_file": "cat<{outside}/secret.txt",
    "process_substitution": "cat <(cat {outside}/secret.txt)",
    "glob": "cat {up}/*",
    "variable": "cat $HOME/../{up}/secret.txt",
    "field_separator": "cat${IFS}{outside}/secret.txt",
    "nul": "cat a.txt\0{up}/secret.txt",
    "nul_quoted": "cat '{up}/secret.txt\0.txt'",
    "quoted_semicolon": "cat 'a.txt;cat {outside}/secret.txt'",
    "open_quote": "cat '{outside}/secret.txt",
    "not_utf8": "cat \udcff\udcfe/../{up}/secret.txt",
    "not_utf8_name": "cat \udcff\udcfe",
    "escape_in_a_name": "cat '\x1b[31mred'",
    "newline_in_a_name": "cat 'line\nbreak'",
    "name_of_256_bytes": f"cat {LONG}",
    "name_of_86_characters_and_258_bytes": "cat " + "日" * 86,
    "path_of_5000_characters": f"cat {FAR}a.txt",
    "path_of_5000_parents": "cat " + "src/../" * 700 + "{up}/secret.txt",
    "shell": "sh -c 'cat {outside}/secret.txt'",
    "python": "python -c 'print(open(\"{outside}/secret.txt\").read())'",
    "path_to_a_command": "/bin/cat {outside}/secret.txt",
}

WRITES = {
    "parent": "{up}/out.txt",
    "parent_of_a_file_that_exists": "{up}/secret.txt",
    "parent_in_quotes": "'../out'",
    "absolute": "{outside}/secret.txt",
    "etc": "/etc/x",
    "tmp": "/tmp/x",
    "link": "out_file",
    "link_folder": "out_folder/new.txt",
    "link_folder_that_exists": "out_folder/secret.txt",
    "link_dangling": "dangling",
    "link_chain": "chain0",
    "link_loop": "loop",
    "link_above": "above/x",
    "hard_link": "hard",
    "fifo": "fifo",
    "socket": "socket",
    "device": "zero",
    "hidden": ".env",
    "hidden_new": "src/.profile",
    "hidden_folder": ".git/config",
    "folder": "src",
    "root": "/",
    "dot": ".",
    "dots": "..",
    "missing_folder": "missing/x",
    "newline": "'a\nb'",
    "escape": "'\x1b[2J'",
    "nul": "'a\0b'",
    "not_utf8": "\udcff",
    "name_of_256_bytes": LONG,
    "path_of_5000_characters": FAR + "x",
    "two_targets": "a > {outside}/x",
    "pipe": "x | tee {outside}/x",
    "nothing": "",
    "empty": "''",
}


@pytest.mark.parametrize("command", [pytest.param(command, id=name) for name, command in READS.items()])
def test_nothing_outside_is_read(trapped, command):
    result = trapped.run(command)
    assert result.failed
    assert result.answer is None
    assert not result.ended
    assert trapped.sandbox.cwd == PurePosixPath(".")


@pytest.mark.parametrize("sign", [">", ">>"])
@pytest.mark.parametrize("target", [pytest.param(target, id=name) for name, target in WRITES.items()])
def test_nothing_outside_is_written(trapped, sign, target):
    before = trapped.sandbox.changes()
    assert trapped.run(f"echo written {sign} {target}").failed
    assert trapped.sandbox.changes() == before


def test_the_traps_would_catch_whoever_follows_them(trapped):
    root = trapped.sandbox.root
    for path in (f"{trapped.up}/secret.txt", "out_file", "out_folder/secret.txt", "chain0", "hard", "to_hidden"):
        assert (root / path).read_text() == TOKEN
    assert subprocess.run(
        ["sh", "-c", f"ls; cat {trapped.outside}/*"], capture_output=True, check=True
    ).stdout.endswith(TOKEN.encode())


def test_no_trap_is_listed(trapped):
    files = {Entry("a.txt", False), Entry("ansi.txt", False), Entry("hard", False), Entry("src", True)}
    assert set(trapped.sandbox.entries()) == files
    assert trapped.run("ls").output == "src/\na.txt\nansi.txt\nhard"
    assert trapped.run("ls src").output == "b.txt"
    ansi = trapped.run("cat ansi.txt").output  # codes for terminals are shown and not obeyed
    assert "title" in ansi
    assert {"\x1b", "\x9b"}.isdisjoint(ansi)


def test_traps_of_a_repository_are_not_copied(world):
    root = world.repository
    (root / "out_file").symlink_to(world.outside / "secret.txt")
    (root / "out_folder").symlink_to("../outside")
    (root / "chain").symlink_to("out_file")
    (root / "loop").symlink_to("loop")
    os.mkfifo(root / "fifo")
    os.link(root / "a.txt", root / "hard")
    world.open()
    assert sorted(world.sandbox.left_out) == ["chain", "fifo", "loop", "out_file", "out_folder"]
    assert world.run("ls").output == "src/\na.txt\nhard"
    assert not world.run("echo x > hard").failed
    for name in ("out_file", "out_folder/secret.txt", "chain", "loop", "fifo"):
        assert world.run(f"cat {name}").failed


# ---- races -----------------------------------------------------------------------------------------------------------


def swap(name: str, inside: Path, link: Path, stop: threading.Event) -> None:
    """Let ``name`` be what lies inside and a link out of the sandbox in turns."""
    place = inside.parent / name
    while not stop.is_set():
        os.rename(inside, place)  # noqa: PTH104
        os.rename(place, inside)  # noqa: PTH104
        os.rename(link, place)  # noqa: PTH104
        os.rename(place, link)  # noqa: PTH104


@pytest.mark.parametrize("command", ["cat place/f.txt", "ls place", "cd place", "echo x > place/f.txt", "cat f.txt"])
def test_a_race_does_not_lead_out(world, command):
    world.open()
    root = world.sandbox.root
    (root / "folder").mkdir()
    (root / "folder" / "f.txt").write_text("inside")
    (root / "file").write_text("inside")
    (root / "link").symlink_to(world.outside)
    (root / "file_link").symlink_to(world.outside / "secret.txt")
    name, inside, link = ("place", "folder", "link") if "place" in command else ("f.txt", "file", "file_link")
    stop = threading.Event()
    swapping = threading.Thread(target=swap, args=(name, root / inside, root / link, stop))
    swapping.start()
    try:
        end = time.monotonic() + 0.3
        results = []
        while time.monotonic() < end:
            results.append(world.run(command))
            assert "secret" not in results[-1].output
            world.run("cd /")
    finally:
        stop.set()
        swapping.join()
    assert {result.failed for result in results} == {True, False}, "the race never took place"


def test_a_folder_that_moves_out_is_not_followed_up(world):
    world.open()
    root = world.sandbox.root
    (root / "src" / "up").symlink_to("..")
    for _ in range(50):
        os.rename(root / "src", world.folder / "moved")  # noqa: PTH104
        assert world.run("cat src/up/secret.txt").failed
        os.rename(world.folder / "moved", root / "src")  # noqa: PTH104
        assert world.run("cat src/up/a.txt").output == "a"


# ---- large things ----------------------------------------------------------------------------------------------------


def test_a_huge_file_is_neither_read_nor_copied_whole(world):
    with (world.repository / "huge").open("wb") as file:
        file.truncate(10 * 1024**3)
    with pytest.raises(InvalidInput, match="10,737,418,240"):
        Sandbox(world.repository)
    (world.repository / "huge").unlink()
    world.open()
    with (world.sandbox.root / "huge").open("wb") as file:
        file.write(b"text\n" * 10_000)
        file.truncate(10 * 1024**3)
    assert world.run("cat huge").output.startswith("text\ntext\n")
    assert world.run("head -n 1 huge").output == "text"
    world.run("tail huge")
    with pytest.raises(WorkFailed):
        world.sandbox.changes()
    (world.sandbox.root / "lines").write_text("\n" * 1_000_000)
    assert world.run("cat lines").output.endswith("(cut after 4,000 characters)")
    assert world.run("tail -n 900000 lines").output.endswith("(only the last 4,000 characters)")


def test_a_folder_of_100000_files_is_listed_within_limits(tmp_path, monkeypatch):
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else tmp_path) as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        (tmp_path / "empty").mkdir()
        with Sandbox(tmp_path / "empty") as sandbox:
            (sandbox.root / "many").mkdir()
            fd = os.open(sandbox.root / "many", os.O_RDONLY)
            for number in range(100_000):
                os.close(os.open(f"file{number:06d}", os.O_WRONLY | os.O_CREAT, dir_fd=fd))
            os.close(fd)
            output = sandbox.run("ls many").output
            assert len(sandbox.entries(PurePosixPath("many"))) == 100_000
            assert output.startswith("file000000\nfile000001\n")
            assert output.endswith("(cut after 4,000 characters)")
        assert list(Path(folder).iterdir()) == []


def test_a_tree_of_1000_folders_is_copied_as_far_as_paths_go(tmp_path):
    folders = ["r/" + "d/" * depth for depth in range(1001)]
    for folder in folders:
        (tmp_path / folder).mkdir()
    (tmp_path / folders[50] / "deep.txt").write_text("deep")
    try:
        with Sandbox(tmp_path / "r") as sandbox:
            assert sandbox.left_out == (f"{'d/' * 40}...",)
            assert sandbox.run(f"cat {'d/' * 50}deep.txt").output == "deep"
            assert not sandbox.run(f"cd {'d/' * 100}").failed
            assert not sandbox.run(f"ls {'../' * 100}").failed
            assert sandbox.run("ls " + "d/" * 1001).failed
            assert sandbox.changes() == {}
    finally:
        (tmp_path / folders[50] / "deep.txt").unlink()
        for folder in reversed(folders):
            (tmp_path / folder).rmdir()


# ---- programs --------------------------------------------------------------------------------------------------------

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
    "read_hostname": "open('/etc/hostname').read()",
    "read_passwd": "open('/etc/passwd').read()",
    "read_secret": "open('{outside}/secret.txt').read()",
    "read_secret_relative": "open('{up}/secret.txt').read()",
    "read_repository": "open('{repository}/.env').read()",
    "read_folder_of_copies": "os.listdir('{copies}')",
    "read_home": "os.listdir('/home')",
    "read_through_the_first_process": "open('/proc/1/root/etc/passwd').read()",
    "write_memory_of_the_first_process": "os.open('/proc/1/mem', os.O_WRONLY)",
    "read_system_settings": "os.listdir('/sys')",
    "write_outside": "open('{outside}/secret.txt', 'a')",
    "write_etc": "open('/etc/x', 'w')",
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
    partly = {*calls.MAKERS_OF_SOCKETS, calls.CLONE, calls.IOCTL}
    listed = {number_of(call) for call in calls.ALLOWED | partly}
    listed |= {335, 336}  # uretprobe and uprobe, which newer kernels filter for nobody, and which kill their caller
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


def processes_with(mark: str) -> list[str]:
    """Processes of this machine whose command line holds ``mark``."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and mark.encode() in (process / "cmdline").read_bytes():
                found.append(process.name)
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


GREEDY = {
    "fork_bomb": ("import os, time\nfor _ in range(9): os.fork()\ntime.sleep(60)", "processes and threads"),
    "endless_forks": (
        "import os, time\nend = time.time() + 5\nwhile time.time() < end: os.fork()",
        "processes and threads",
    ),
    "threads": (
        "import threading, time\nthreading.stack_size(65536)\n"
        "for _ in range(200): threading.Thread(target=time.sleep, args=(60,)).start()",
        "processes and threads",
    ),
    "memory": ("x = bytearray(5 << 30)", "MemoryError"),
    "memory_bit_by_bit": ("x = []\nwhile True: x.append(bytes(range(256)) * 4096)", "MemoryError"),
    "memory_of_many": (
        "import os, time\nfor _ in range(3): os.fork()\nx = b'x' * (100 << 20)\ntime.sleep(60)",
        "bytes of memory",
    ),
    "endless_output": ("while True: print('x' * 1000)", "printed more than 4,000 characters"),
    "endless_errors": ("import sys\nwhile True: sys.stderr.write('x' * 1000)", "printed more than 4,000 characters"),
    "endless_loop": ("while True: pass", "took longer than 1 seconds"),
    "deaf_loop": (
        "import signal, time\nfor n in range(1, 32):\n    try: signal.signal(n, signal.SIG_IGN)\n"
        "    except OSError: pass\ntime.sleep(60)",
        "took longer than 1 seconds",
    ),
    "huge_file": ("f = open('huge', 'wb')\nwhile True: f.write(bytes(1 << 20))", "bytes"),
    # Looked at from time to time, so that how much more it writes is a matter of its pace.
    "many_files": (
        "import time\nn = 0\nwhile True:\n    n += 1\n    time.sleep(0.02)\n"
        "    open(f'{n}', 'wb').write(bytes(1 << 20))",
        "bytes",
    ),
    "files_in_memory": ("n = 0\nwhile True:\n    n += 1\n    open(f'/tmp/{n}', 'wb').write(bytes(1 << 20))", ""),
}


@needs_bubblewrap
@pytest.mark.parametrize(("code", "reason"), [pytest.param(*case, id=name) for name, case in GREEDY.items()])
def test_a_greedy_program_is_stopped(world, code, reason):
    seconds = 1 if "longer" in reason else 100
    world.open(programs=True, limits=Limits(seconds=seconds, memory_bytes=400 << 20, write_bytes=20 << 20))
    mark = str(uuid.uuid4())
    result = world.python(f"{code}\n# {mark}")
    assert result.failed
    assert reason in result.output
    assert processes_with(mark) == []
    assert sum(path.stat().st_size for path in world.sandbox.root.iterdir()) < 60 << 20


CROWDS = {
    "files": "for n in range(300): open(str(n), 'w').close()",
    "folders": "for n in range(300): os.mkdir(str(n))",
    "links": "for n in range(300): os.symlink('x', str(n))",
    "hidden": "os.mkdir('.x')\nfor n in range(300): os.mkdir(f'.x/{n}')",
    "deep": "for n in range(300): os.mkdir('d'); os.chdir('d')",
    "in_a_closed_folder": "os.mkdir('x')\nfor n in range(300): os.mkdir(f'x/{n}')\nos.chmod('x', 0)",
    "in_memory": "for n in range(300): os.mkdir(f'/tmp/{n}')",
    "in_shared_memory": "for n in range(300): os.mkdir(f'/dev/shm/{n}')",
}


@needs_bubblewrap
@pytest.mark.parametrize("code", [pytest.param(code, id=name) for name, code in CROWDS.items()])
def test_a_program_that_makes_many_files_is_stopped(world, code):
    world.open(programs=True, limits=Limits(write_files=200))
    result = world.python(f"import os, time\n{code}\ntime.sleep(60)")
    assert result.failed
    assert "files and folders" in result.output
    again = world.python("1")
    assert again.failed == ("/" not in code or "x/" in code), "what is in memory is gone"
    assert not again.failed or "are used up" in again.output


def test_files_that_others_make_are_not_counted(world):
    world.open()
    held = Entries(world.sandbox.root, 200)
    for number in range(300):
        (world.folder / "others" / str(number)).mkdir(parents=True)
    assert not held.too_many()


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
    assert processes_with(mark) == []
    before = world.sandbox.changes()
    time.sleep(0.1)
    assert world.sandbox.changes() == before


@needs_bubblewrap
def test_what_a_program_leaves_behind_does_not_lead_out(world):
    world.open(programs=True)
    result = world.python(
        "import os, socket\n"
        f"os.symlink('{world.outside}/secret.txt', 'out'); os.symlink('{world.up}', 'folder')\n"
        "os.symlink('/', 'root')\n"
        "os.mkfifo('fifo'); os.link('a.txt', 'hard'); socket.socket(socket.AF_UNIX).bind('socket')\n"
        "os.chmod('src', 0); os.mkdir('.hidden'); open('.hidden/x', 'w').write('x')"
    )
    assert not result.failed
    for command in (
        "cat out",
        "cat folder/secret.txt",
        "cat root/etc/passwd",
        "cat fifo",
        "cat socket",
        "cat .hidden/x",
    ):
        assert world.run(command).failed
    assert world.run("echo x > out").failed
    assert {entry.name for entry in world.sandbox.entries()} <= {"a.txt", "hard", "src"}


@needs_bubblewrap
def test_a_program_may_delete_the_copy_and_nothing_else(world):
    world.open(programs=True)
    world.python("import os, shutil\nshutil.rmtree('/repository', ignore_errors=True)\nos.remove(os.__file__)")
    assert Path(os.__file__).exists()
    assert world.run("ls").output == "this folder is empty."
    assert world.sandbox.changes() == {"a.txt": None, "src/b.txt": None}
    assert not world.run("python -c 1").failed
    # nor what is too deep for anyone to follow
    assert not world.python("import os\nfor _ in range(1100): os.mkdir('d' * 200); os.chdir('d' * 200)").failed
    assert world.sandbox.changes() == {"a.txt": None, "src/b.txt": None}
    for command in ("pip install reflectrl-no-such-package", "pip install ./src"):
        assert world.run(command).failed
