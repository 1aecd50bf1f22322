"""The gradient of an optimizer step as a sum over micro-batches whose bits do not depend on who computes which.

Sums of floating-point numbers depend on their order. Here the order is that of a binary tree over the numbers of the
micro-batches, whoever holds them: each rank sums the subtrees that lie within its own micro-batches, and every rank
completes the tree from the subtrees of all. One rank alone does the same, so a policy is the same bit for bit after an
update by one device or by many of its kind.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import torch
from torch import Tensor

BUCKET: Final = 16 * 2**20
"""Values that are exchanged at a time: what all ranks sent of one bucket is on the device together."""

REDUCTION: Final = "pairwise"
"""In what order gradients are added, for keys."""

Place = tuple[int, int]
"""A node of the tree: its level, from the leaves up, and its number in the level. It is the sum of the micro-batches
from number << level on, 1 << level of them at most."""


class Ranks(Protocol):
    """The devices that make an update together, as one of them sees them."""

    @property
    def rank(self) -> int:
        """Of this device, from 0."""
        ...

    @property
    def world(self) -> int:
        """How many there are."""
        ...

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """What each rank gives, in the order of ranks; all give tensors of one shape and dtype, at the same time."""
        ...


class Alone:
    """One device by itself."""

    rank = 0
    world = 1

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """Its own."""
        return [tensor]


ALONE: Final = Alone()


def spans(count: int, world: int) -> list[range]:
    """The micro-batches of each rank: consecutive ones, as equal in number as can be. Some may be empty."""
    edges = [rank * count // world for rank in range(world + 1)]
    return [range(start, stop) for start, stop in itertools.pairwise(edges)]


def places(span: range) -> list[Place]:
    """The largest subtrees that lie within a span, from left to right."""
    found = []
    start = span.start
    while start < span.stop:
        level = 0
        while start % (2 << level) == 0 and start + (2 << level) <= span.stop:
            level += 1
        found.append((level, start >> level))
        start += 1 << level
    return found


@dataclass
class _Node:
    """A subtree's sum; None where every micro-batch in it was left out."""

    place: Place
    sums: list[Tensor] | None


class GradientSum:
    """The sum over all micro-batches of an optimizer step, of which this rank adds its own in order.

    Memory: besides the gradient being added, a copy for each level of the tree at most.

    Args:
        count: micro-batches of the step, of all ranks.
    """

    def __init__(self, count: int, ranks: Ranks) -> None:
        self._spans = spans(count, ranks.world)
        self._ranks = ranks
        self._nodes: list[_Node] = []
        self._next = self.span.start

    @property
    def span(self) -> range:
        """The numbers of this rank's micro-batches."""
        return self._spans[self._ranks.rank]

    def add(self, gradient: list[Tensor] | None) -> None:
        """The gradient of the next micro-batch, whose tensors are taken over; None leaves it out."""
        assert self._next in self.span, "more micro-batches than the rank has"
        self._nodes.append(_Node((0, self._next), gradient))
        self._next += 1
        wanted = places(self.span)
        while self._nodes[-1].place not in wanted and self._merges():
            right, left = self._nodes.pop(), self._nodes.pop()
            self._nodes.append(_joined(left, right))

    def total(self, like: Sequence[Tensor]) -> list[Tensor] | None:
        """The sum, the same bits on every rank; None where every micro-batch was left out.

        Args:
            like: tensors of the gradient's shapes, float32, on the device.
        """
        assert self._next == self.span.stop, "not every micro-batch of the rank was added"
        if self._ranks.world == 1:
            root = _completed(self._nodes)
            return root.sums if root is not None else None
        slots = max(len(places(span)) for span in self._spans)
        there = self._presence(slots, like[0].device)
        if not any(any(flags) for flags in there):
            return None
        total = torch.cat([torch.zeros_like(tensor).flatten() for tensor in like])
        for start in range(0, len(total), BUCKET):
            part = slice(start, min(start + BUCKET, len(total)))
            total[part] = self._summed(part, there, slots, total[part])
        pieces = torch.split(total, [tensor.numel() for tensor in like])
        # Copies: how a device sums over a tensor, for its norm, may depend on where the tensor begins.
        return [piece.view_as(tensor).clone() for piece, tensor in zip(pieces, like, strict=True)]

    def _merges(self) -> bool:
        if len(self._nodes) < 2:
            return False
        (left, number), (right, other) = self._nodes[-2].place, self._nodes[-1].place
        return left == right and other == number + 1 and number % 2 == 0

    def _presence(self, slots: int, device: torch.device) -> list[list[bool]]:
        """Of every rank, which of its nodes hold something."""
        mine = torch.zeros(slots, dtype=torch.int32, device=device)
        for slot, node in enumerate(self._nodes):
            mine[slot] = int(node.sums is not None)
        return [[bool(flag) for flag in flags.tolist()] for flags in self._ranks.gather(mine)]

    def _summed(self, part: slice, there: list[list[bool]], slots: int, like: Tensor) -> Tensor:
        nodes: list[list[_Node]] = [[] for _ in self._spans]
        for slot in range(slots):
            received = self._ranks.gather(self._flat(slot, part, like))
            for rank, values in enumerate(received):
                wanted = places(self._spans[rank])
                if slot < len(wanted):
                    nodes[rank].append(_Node(wanted[slot], [values] if there[rank][slot] else None))
        root = _completed([node for own in nodes for node in own])
        assert root is not None
        assert root.sums is not None
        return root.sums[0]

    def _flat(self, slot: int, part: slice, like: Tensor) -> Tensor:
        if slot >= len(self._nodes) or self._nodes[slot].sums is None:
            return torch.zeros_like(like)
        sums = self._nodes[slot].sums
        assert sums is not None
        return torch.cat(list(_cut(sums, part)))


def _cut(tensors: Sequence[Tensor], part: slice) -> Iterator[Tensor]:
    """What lies within a part of all tensors' values, laid end to end."""
    start = 0
    for tensor in tensors:
        stop = start + tensor.numel()
        if stop > part.start and start < part.stop:
            yield tensor.flatten()[max(part.start - start, 0) : part.stop - start]
        start = stop


def _joined(left: _Node, right: _Node) -> _Node:
    level, number = left.place
    return _Node((level + 1, number // 2), _added(left.sums, right.sums))


def _added(left: list[Tensor] | None, right: list[Tensor] | None) -> list[Tensor] | None:
    if left is None or right is None:
        return right if left is None else left
    for mine, other in zip(left, right, strict=True):
        mine.add_(other)
    return left


def _completed(nodes: Sequence[_Node]) -> _Node | None:
    """The root over nodes that cover all micro-batches from the first on; what lies beyond the last adds nothing."""
    stack: list[_Node] = []
    for node in nodes:
        stack.append(node)
        while len(stack) > 1 and stack[-1].place[0] == stack[-2].place[0] and stack[-1].place[1] % 2:
            right, left = stack.pop(), stack.pop()
            stack.append(_joined(left, right))
    while len(stack) > 1:
        right, left = stack.pop(), stack.pop()
        while right.place[0] < left.place[0]:
            # Its sibling is beyond the last micro-batch.
            right = _Node((right.place[0] + 1, right.place[1] // 2), right.sums)
        stack.append(_joined(left, right))
    return stack[0] if stack else None
