"""Work for spawned processes: module-level functions that a new process can import."""

import os
import time


def double(number):
    """Twice the number, with what only a process can tell."""
    import torch

    return 2 * number, os.getpid(), torch.get_num_threads()


def die_at_two(number):
    """Ends its process as the kernel's killer of memory does."""
    if number == 2:
        os.kill(os.getpid(), 9)
    return number


def raise_at_two(number):
    """Raises what nobody catches."""
    if number == 2:
        raise ValueError("two")
    return number


def sleep_long(number):
    """Writes its process id where it is told, and sleeps."""
    path, seconds = number
    path.write_text(str(os.getpid()))
    time.sleep(seconds)


def see_device(number):
    """The GPU that the process was told to use, after a while in which others begin."""
    time.sleep(0.5)
    return os.environ.get("CUDA_VISIBLE_DEVICES")
