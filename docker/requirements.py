"""Print what pyproject.toml asks for, so that an image can have it before the code: it changes less often.

``requirements.py ray s3`` prints the project's dependencies and those two extras'; ``--only a b`` leaves of the
dependencies a and b. Standard library alone: it runs before anything is installed.
"""

import argparse
import re
import tomllib
from pathlib import Path


def name_of(requirement: str) -> str:
    """The package's name in a requirement such as ``zarr>=3.1,<4``."""
    found = re.match(r"[\w.-]+", requirement)
    if found is None:
        raise SystemExit(f"pyproject.toml asks for {requirement!r}, which names no package")
    return found[0]


def requirements(pyproject: Path, extras: list[str], only: list[str] | None = None) -> list[str]:
    """The requirements of the project and of some of its extras.

    Args:
        pyproject: the file.
        extras: names of extras.
        only: names of the project's own dependencies to keep; None keeps all.

    Raises:
        SystemExit: the file has no such extra or dependency; the message names those it has.
    """
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    own = {name_of(line): line for line in project["dependencies"]}
    wanted = list(own) if only is None else only
    offered = project["optional-dependencies"]
    for kind, given, there in (("dependency", wanted, own), ("extra", extras, offered)):
        if missing := [name for name in given if name not in there]:
            raise SystemExit(f"{pyproject} has no {kind} {missing[0]!r}: it has {', '.join(there)}")
    return [own[name] for name in wanted] + [line for extra in extras for line in offered[extra]]


def main() -> None:
    """Read the names from the command line and print one requirement a line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("extras", nargs="*")
    parser.add_argument("--only", nargs="*", metavar="DEPENDENCY")
    given = parser.parse_args()
    print("\n".join(requirements(Path(__file__).with_name("pyproject.toml"), given.extras, given.only)))


if __name__ == "__main__":
    main()
