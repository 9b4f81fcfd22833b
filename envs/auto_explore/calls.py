"""The system calls that a program in the sandbox may make, as a seccomp filter; others fail with ENOSYS.

Left out are calls that reach beyond the sandbox (keyrings, other processes, the kernel's settings), those that take
memory or disk space without a trace in ``/proc``, and whatever python can do without. ENOSYS lets libraries fall back
on an older call, as on a kernel without the newer one.
"""

from __future__ import annotations

import errno
from typing import IO

from reflectrl.core import InvalidInput

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
