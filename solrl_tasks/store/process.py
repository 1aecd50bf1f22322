"""Which process wrote something, and whether it still lives."""

import hashlib
import os
import socket
from pathlib import Path


def host_id() -> str:
    """This host and its process namespace, 8 hex digits: numbers of processes mean something within them only."""
    try:
        namespace = str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        namespace = ""
    return hashlib.sha256(f"{socket.gethostname()} {namespace}".encode()).hexdigest()[:8]


def boot_id() -> str:
    """This boot of this machine and its process namespace, 32 hex digits; empty where the system does not tell.

    Unlike ``host_id`` it is never that of another machine, whatever that is called.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""
    return hashlib.sha256(f"{boot} {socket.gethostname()} {namespace}".encode()).hexdigest()[:32]


def start_of(pid: int) -> int:
    """When a process began, in ticks since boot, to tell apart a number used again; 0 if there is none.

    Where there is no ``/proc``, every living process has 1.
    """
    try:
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        # A process that was killed and that nobody has waited for yet does nothing any more.
        return 0 if state == "Z" else int(rest[18])
    except (OSError, IndexError, ValueError):
        pass
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return 0
    except PermissionError:
        pass
    return 1
