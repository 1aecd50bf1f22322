"""Whether a twin runs compiled, and how: each repeated block by itself, in graphs that outlive a sync."""

import functools
import itertools
import types
from collections.abc import Callable, Collection, Iterable
from typing import Any, Literal

import torch
from pydantic import Field
from torch import nn

from solrl_tasks.config.base import Frozen
from solrl_tasks.engines.base import EngineError

Choice = Literal["auto", "compiled", "eager"]
Execution = Literal["compiled", "eager"]
Backend = str | Callable[..., Any]
"""Of ``torch.compile``."""

_numbers = itertools.count()


class EngineOptions(Frozen):
    """What every engine lets one choose.

    ``execution``: ``compiled`` runs each transformer block as a graph of fused kernels, for the shapes that it meets;
    ``eager`` runs operation by operation, for comparison and for networks that cannot be compiled. ``auto`` compiles
    on accelerators, where it pays, and nowhere else. It is left out of a dump: what it comes to is in the numerics and
    in the record, and asking for what ``auto`` gives is no other engine.
    """

    execution: Choice = Field(default="auto", exclude=True)


def resolve_execution(options: Frozen, device_class: str) -> Execution:
    """What ``execution`` comes to on a device; engines without that option are eager.

    Args:
        options: an engine's options.
        device_class: ``cpu``, or ``sm_90`` and the like.
    """
    choice: Choice = getattr(options, "execution", "eager")
    if choice == "auto":
        return "compiled" if device_class.startswith("sm_") else "eager"
    return choice


def compile_regions(
    twin: nn.Module, layers: Iterable[str], engine: str, backend: Backend, fullgraph: bool = True
) -> int:
    """Have every region of a twin compiled when it first runs; returns how many regions there are.

    Regions of one class share their graphs, and share them with no other engine: torch keeps graphs by code object
    and allows eight for each, so every engine and class gets a code object of its own. Shapes are static: each new
    one is traced anew.

    Args:
        layers: dotted paths of the engine's own layers; a region is a block that holds some.
        backend: of ``torch.compile``.
        fullgraph: a region is one graph, and what cannot be traced an error; else there may be breaks, and eager code
            between graphs.
    """
    compiled: dict[type[nn.Module], Callable[..., Any]] = {}
    regions = find_regions(twin, set(layers))
    for region in regions:
        kind = type(region)
        if kind not in compiled:
            entry = _entry(f"{engine}_{kind.__name__}".replace("-", "_"))
            whole = torch.compile(entry, fullgraph=fullgraph, dynamic=False, backend=backend)
            compiled[kind] = whole if fullgraph else functools.partial(_refusing_retreat, whole)
        region.forward = functools.partial(_run, compiled[kind], region, engine)
    return len(regions)


def find_regions(twin: nn.Module, layers: Collection[str]) -> list[nn.Module]:
    """The members of the outermost module lists that hold one of ``layers``; the whole twin if there is none."""
    held = {path: _ancestors(path) for path in layers}
    within = frozenset(itertools.chain.from_iterable(held.values()))
    regions = []
    for path, module in twin.named_modules():
        if isinstance(module, nn.ModuleList) and not _inside_list(twin, path):
            prefix = f"{path}." if path else ""
            regions += [block for name, block in module.named_children() if f"{prefix}{name}" in within]
    return regions or [twin]


def _ancestors(path: str) -> list[str]:
    parts = path.split(".")
    return [".".join(parts[:length]) for length in range(1, len(parts))]


def _inside_list(twin: nn.Module, path: str) -> bool:
    return any(isinstance(twin.get_submodule(above), nn.ModuleList) for above in _ancestors(path))


def _forward(forward: Callable[..., Any], region: nn.Module, *arguments: Any, **named: Any) -> Any:
    return forward(region, *arguments, **named)


def _refusing_retreat(compiled: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """With breaks allowed, torch would run what has too many shapes eagerly, and say so in a log only."""
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
        return compiled(*arguments, **named)


def _entry(name: str) -> Callable[..., Any]:
    # Graphs are kept by code object: a copy has none yet.
    code = _forward.__code__.replace(co_name=f"{name}_{next(_numbers)}")
    return types.FunctionType(code, _forward.__globals__, name)


def _run(compiled: Callable[..., Any], region: nn.Module, engine: str, *arguments: Any, **named: Any) -> Any:
    try:
        return compiled(type(region).forward, region, *arguments, **named)
    except (torch._dynamo.exc.TorchDynamoException, torch._dynamo.exc.FailOnRecompileLimitHit) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise EngineError(
            f"engine {engine!r} cannot compile {type(region).__name__}: {reason}. "
            "Set its option execution to eager, or give it fewer different shapes"
        ) from error
