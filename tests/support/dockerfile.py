"""What a Dockerfile says of its stages: as much of the format as the tests of ours need."""

import json
import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DOCKER = Path(__file__).resolve().parents[2] / "docker"


@dataclass
class Stage:
    """One stage: what it is built on, and its instructions in order."""

    name: str
    base: str
    instructions: list[tuple[str, str]] = field(default_factory=list)

    def all(self, name: str) -> list[str]:
        return [rest for instruction, rest in self.instructions if instruction == name]


class Dockerfile:
    """Stages by name, and the arguments before the first of them."""

    def __init__(self, path: Path = DOCKER / "Dockerfile") -> None:
        self.arguments: dict[str, str] = {}
        self.stages: dict[str, Stage] = {}
        stage = None
        for instruction, rest in instructions(path.read_text(encoding="utf-8")):
            if instruction == "FROM":
                base, _, name = rest.partition(" AS ")
                stage = Stage(name, re.sub(r"\$\{(\w+)\}", lambda found: self.arguments[found[1]], base))
                self.stages[name] = stage
            elif stage is None:
                name, _, value = rest.partition("=")
                self.arguments[name] = value
            else:
                stage.instructions.append((instruction, rest))

    def chain(self, target: str) -> list[Stage]:
        """A stage and those that it is built on, the outermost base first."""
        stage = self.stages[target]
        return [*(self.chain(stage.base) if stage.base in self.stages else []), stage]

    def environment(self, target: str) -> dict[str, str]:
        pairs = [
            word.partition("=") for stage in self.chain(target) for env in stage.all("ENV") for word in env.split()
        ]
        return {name: value for name, _, value in pairs}

    def last(self, target: str, instruction: str) -> str:
        return [rest for stage in self.chain(target) for rest in stage.all(instruction)][-1]

    def command(self, target: str) -> list[str]:
        return list(json.loads(self.last(target, "CMD")))

    def health(self, target: str) -> list[str]:
        """The command of the health check, without its options."""
        return list(json.loads(self.last(target, "HEALTHCHECK").partition(" CMD ")[2]))

    def copied(self) -> set[str]:
        """Everything that is copied from the context."""
        lines = [shlex.split(rest) for stage in self.stages.values() for rest in stage.all("COPY")]
        return {source for words in lines if not words[0].startswith("--from") for source in words[:-1]}


def instructions(text: str) -> list[tuple[str, str]]:
    """Instructions in order; comments left out and continued lines joined."""
    kept = "\n".join(line for line in text.splitlines() if line and not line.lstrip().startswith("#"))
    joined = re.sub(r"\s*\\\n\s*", " ", kept)
    parts = (line.partition(" ") for line in joined.splitlines())
    return [(name, rest.strip()) for name, _, rest in parts]


def service_target(service: dict[str, Any]) -> str:
    """The stage that a service of the compose file is built from."""
    return str(service["build"]["target"])
