"""A forward recorded once for each shape of its inputs and replayed from then on, without Python in between."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from solrl_tasks.engines.base import EngineError

LIMIT: Final = 8
"""Recordings at a time; each keeps the memory of a whole forward."""
_WARM_UP: Final = 3

Run = Callable[[], Any]
Recorder = Callable[[Run, torch.device], tuple[Run, Any]]
"""(forward on tensors that stay, device) -> replay, which computes them anew, and the outputs that it writes to."""


def record_cuda_graph(run: Run, device: torch.device) -> tuple[Run, Any]:
    """Record ``run`` as one CUDA graph, after runs that compile and allocate what need not be repeated.

    Meanwhile other threads may use the device, but not draw random numbers on it.
    """
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        for _ in range(_WARM_UP):
            run()
    torch.cuda.current_stream(device).wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        outputs = run()
    return graph.replay, outputs


@dataclass(frozen=True)
class _Recording:
    inputs: list[Tensor]
    replay: Run
    outputs: Any


class Replayed:
    """Stands in for a module's ``forward``.

    A recording reads weights where they were, so they may be overwritten but not moved: after layers were exchanged,
    call ``forget``. Tensors may be anything; all other arguments are part of a recording and may take few values.

    Args:
        forward: without gradients, and without reading the device's results on the host.
        device: of the inputs.
        record: how; anything but CUDA graphs is for tests.
    """

    def __init__(self, forward: Callable[..., Any], device: torch.device, record: Recorder = record_cuda_graph) -> None:
        self._forward = forward
        self._device = device
        self._record = record
        self._recordings: dict[Any, _Recording] = {}

    def __len__(self) -> int:
        """How many recordings there are."""
        return len(self._recordings)

    def forget(self) -> None:
        """Drop all recordings."""
        self._recordings.clear()

    @torch.no_grad()
    def __call__(self, *arguments: Any, **named: Any) -> Any:
        leaves, structure = pytree.tree_flatten((arguments, named))
        signature = (str(structure), *(_describe(leaf) for leaf in leaves))
        recording = self._recordings.get(signature)
        if recording is None:
            recording = self._recordings[signature] = self._start(leaves, structure)
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        for kept, given in zip(recording.inputs, tensors, strict=True):
            kept.copy_(given)
        recording.replay()
        # The next replay overwrites its outputs.
        return pytree.tree_map_only(Tensor, Tensor.clone, recording.outputs)

    # Tensors of inference mode could not be written to outside of it.
    @torch.inference_mode(mode=False)
    @torch.no_grad()
    def _start(self, leaves: list[Any], structure: Any) -> _Recording:
        if len(self._recordings) >= LIMIT:
            raise EngineError(
                f"{LIMIT} different shapes or options of inputs are recorded already, and each keeps its memory: "
                "set the engine's option graphs to false, or give it fewer different inputs"
            )
        kept = [torch.empty_like(leaf).copy_(leaf) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        arguments, named = pytree.tree_unflatten(kept, structure)
        replay, outputs = self._record(lambda: self._forward(*arguments, **named), self._device)
        return _Recording([leaf for leaf in kept if isinstance(leaf, Tensor)], replay, outputs)


def _describe(leaf: Any) -> Any:
    """What of an argument a recording depends on."""
    if isinstance(leaf, Tensor):
        return leaf.shape, leaf.dtype, leaf.device
    return type(leaf), leaf
