"""Which matrix-multiplication layers of a network a rule covers."""

import re
from dataclasses import dataclass

from torch import nn

OUTSIDE = "outside the scope"


class ScopeError(ValueError):
    """A rule that matches no layer: the model is not the one that the rule was written for."""


@dataclass(frozen=True)
class ScopeMatch:
    """Every matrix-multiplication layer of a network, covered or not.

    Attributes:
        replaced: dotted paths of the covered layers, in module order.
        skipped: dotted path to reason, for all the others.
    """

    replaced: tuple[str, ...]
    skipped: dict[str, str]


@dataclass(frozen=True)
class LayerScope:
    """Rules over full dotted paths; each is a regular expression that must match the whole path.

    Attributes:
        include: a layer is covered if one of these matches.
        skip: pairs (expression, reason); the first that matches leaves the layer out, whatever ``include``
            says.
    """

    include: tuple[str, ...]
    skip: tuple[tuple[str, str], ...] = ()

    def resolve(self, root: nn.Module) -> ScopeMatch:
        """Apply the rules to the Linear and pointwise convolution layers under ``root``.

        Raises:
            ScopeError: an ``include`` or ``skip`` rule matches nothing.
        """
        paths = matmul_paths(root)
        self._refuse_idle_rules(paths)
        replaced: list[str] = []
        skipped: dict[str, str] = {}
        for path in paths:
            reason = self._skip_reason(path)
            if reason is None:
                replaced.append(path)
            else:
                skipped[path] = reason
        return ScopeMatch(tuple(replaced), skipped)

    def _skip_reason(self, path: str) -> str | None:
        for pattern, reason in self.skip:
            if re.fullmatch(pattern, path):
                return reason
        covered = any(re.fullmatch(pattern, path) for pattern in self.include)
        return None if covered else OUTSIDE

    def _refuse_idle_rules(self, paths: list[str]) -> None:
        rules = [("include", p) for p in self.include] + [("skip", p) for p, _ in self.skip]
        for kind, pattern in rules:
            if not any(re.fullmatch(pattern, path) for path in paths):
                examples = ", ".join(paths[:3]) or "none"
                raise ScopeError(
                    f"{kind} rule {pattern!r} matches none of the {len(paths)} Linear or 1x1 convolutions "
                    f"(the first are: {examples}): correct the rule or remove it"
                )


def matmul_paths(root: nn.Module) -> list[str]:
    """Dotted paths of all layers that are one matrix multiplication a position, in module order."""
    return [path for path, module in root.named_modules() if is_matmul(module)]


def is_matmul(module: nn.Module) -> bool:
    """Whether a layer is a Linear or an ungrouped convolution with a 1x1 kernel, stride 1 and no padding."""
    if isinstance(module, nn.Linear):
        return True
    if not isinstance(module, nn.Conv2d):
        return False
    pointwise = module.kernel_size == (1, 1) and module.stride == (1, 1) and module.groups == 1
    return pointwise and module.padding in ((0, 0), "valid")
