"""One quantisation for all layers of a compiled graph that are fed the same tensor, and one tensor in memory for it.

Query, key and value projections each call the quantiser on their input. Compilers of graphs for inference do not merge
equal calls, so it is done here, on the graph as it was traced, before inductor sees it.

Inductor, left to itself, computes the input of a Triton kernel of ours anew for each kernel that reads it, and writes
it to memory each time. Told that such kernels read memory, as it knows of matrix multiplications, it does so once.
"""

import operator
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor, fx

NAMESPACE: Final = "solrl"
"""Of this project's operators, which write to none of their arguments."""


def inductor(graph: fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
    """A backend of ``torch.compile``: inductor, after equal calls are merged."""
    from torch._dynamo.backends.registry import lookup_backend
    from torch._higher_order_ops.triton_kernel_wrap import triton_kernel_wrapper_mutation
    from torch._inductor.lowering import needs_realized_inputs

    needs_realized_inputs.add(triton_kernel_wrapper_mutation)  # type: ignore[arg-type]
    merge_equal_calls(graph)
    compiled: Callable[..., Any] = lookup_backend("inductor")(graph, inputs)
    return compiled


def merge_equal_calls(module: fx.GraphModule) -> int:
    """Let calls of one operator of ours with equal arguments share one result; returns how many calls went.

    Calls between which anything is written to are left alone: their arguments may have changed.
    """
    known: dict[Any, fx.Node] = {}
    merged = 0
    for node in list(module.graph.nodes):
        if _writes(node):
            known.clear()
        elif _is_own(node):
            first = known.setdefault((node.target, node.args, tuple(sorted(node.kwargs.items()))), node)
            if first is not node:
                node.replace_all_uses_with(first)
                module.graph.erase_node(node)
                merged += 1
    if merged:
        module.recompile()
    return merged


def _is_own(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target.namespace == NAMESPACE


def _writes(node: fx.Node) -> bool:
    """Whether a call may write to a tensor that exists already; of a module's inside nothing is known."""
    if node.op == "call_module":
        return True
    if node.op not in ("call_method", "call_function"):
        return False
    if node.kwargs.get("out") is not None or node.kwargs.get("inplace"):
        return True
    if isinstance(node.target, torch._ops.OpOverload):
        return bool(node.target._schema.is_mutable)
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    in_place_method = name.endswith("_") and not name.endswith("__")
    in_place_operator = name.startswith("i") and getattr(operator, name, None) is node.target
    return in_place_method or in_place_operator or name in ("setitem", "__setitem__")
