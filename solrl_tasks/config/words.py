"""Numbers in sentences for people."""


def counted(number: int, noun: str, plural: str = "") -> str:
    """A number and its noun in agreement, such as ``1 block`` or ``2 forward passes``.

    Args:
        noun: in the singular, with what stands before it.
        plural: where it is not the noun with an s.
    """
    return f"{number} {noun if number == 1 else plural or f'{noun}s'}"


def are(number: int) -> str:
    """The verb behind a counted noun: ``is`` or ``are``."""
    return "is" if number == 1 else "are"
