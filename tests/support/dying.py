"""A process that dies in the middle of what it does to a disk."""

import os
import signal


def die_at(nth, names):
    """Let this process be killed at its nth call of any of these functions of ``os``, before the call is made."""
    seen = 0

    def counted(call):
        def made(*args, **kwargs):
            nonlocal seen
            seen += 1
            if seen == nth:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args, **kwargs)

        return made

    for name in names:
        setattr(os, name, counted(getattr(os, name)))
