"""What can be wrong with prompts, in words."""

from typing import Final

SHOWN: Final = 80
"""Characters of a prompt that a message shows."""


class PromptsError(ValueError):
    """A prompt source that cannot be used; the message names file, line, what was found and what to do."""


def shown(text: str) -> str:
    """A prompt for a message: on one line, quoted, and cut."""
    line = " ".join(text.split())
    return repr(line if len(line) <= SHOWN else f"{line[:SHOWN].rstrip()}…")
