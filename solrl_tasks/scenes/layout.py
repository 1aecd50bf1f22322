"""Where the objects of a scene stand: batched, on CPU or GPU, from one seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from solrl_tasks.scenes.grammar import FORMS, HELDOUT_THINGS, KIND_WEIGHTS, RELATIONS, THINGS, Prompt

SLOTS = 4
CANVAS = 64.0
_GAP = 3.0
_MARGIN = 1.5
_TRIES = 48
# Smallest and largest radius by the number of objects, in pixels of the 64-pixel canvas.
_RADII = ((11.0, 18.0), (11.0, 18.0), (9.5, 14.0), (8.5, 11.5), (8.0, 9.5))
# Which thing stands in each slot: 0 the first, 1 the second, -1 nothing.
_SLOT_THINGS = {
    "single": (0, -1, -1, -1),
    "two": (0, 1, -1, -1),
    "count two": (0, 0, -1, -1),
    "count three": (0, 0, 0, -1),
    "count four": (0, 0, 0, 0),
    "mixed": (0, 0, 1, -1),
    **dict.fromkeys(RELATIONS, (0, 1, -1, -1)),
}
_CELLS = ((17.0, 17.0), (47.0, 47.0), (47.0, 17.0), (17.0, 47.0))


@dataclass(frozen=True)
class Captions:
    """A batch of prompts as integers: form [B], first [B] and second [B] thing (0 where there is none), black [B]."""

    form: Tensor
    first: Tensor
    second: Tensor
    black: Tensor

    def __len__(self) -> int:
        return int(self.form.shape[0])

    def index(self) -> Tensor:
        """One number a caption, below `CAPTIONS`: the row of the token tables, int64 [B]."""
        things = len(THINGS)
        return ((self.form * things + self.first) * things + self.second) * 2 + self.black.long()

    def pick(self, rows: Tensor) -> Captions:
        """The captions of the given rows."""
        return Captions(*(getattr(self, field.name)[rows] for field in fields(self)))


CAPTIONS = len(FORMS) * len(THINGS) ** 2 * 2


@dataclass(frozen=True)
class Scenes:
    """A batch of scenes: thing [B, 4] (-1: none), centre [B, 4, 2] and radius [B, 4] in pixels of 64, black [B]."""

    thing: Tensor
    centre: Tensor
    radius: Tensor
    black: Tensor


def captions_of(prompts: Sequence[Prompt], device: torch.device | str = "cpu") -> Captions:
    """The prompts as integers."""
    rows = [
        (FORMS.index(prompt.form), prompt.first.index, prompt.second.index if prompt.second else 0, prompt.black)
        for prompt in prompts
    ]
    table = torch.tensor(rows, dtype=torch.int64, device=device).reshape(-1, 4)
    return Captions(table[:, 0], table[:, 1], table[:, 2], table[:, 3].bool())


def prompt_at(index: int) -> Prompt:
    """The prompt of a caption number (the reverse of `Captions.index`)."""
    rest, black = divmod(index, 2)
    rest, second = divmod(rest, len(THINGS))
    form, first = divmod(rest, len(THINGS))
    two = _SLOT_THINGS[FORMS[form]].count(1) > 0
    return Prompt(FORMS[form], THINGS[first], THINGS[second] if two else None, bool(black))


def draw_captions(count: int, generator: torch.Generator, black_share: float = 0.35) -> Captions:
    """`count` captions as pretraining sees them: never a held-out pair, never the number four, two things differ."""
    device = generator.device
    weights = torch.tensor(_form_weights(), device=device)
    form = torch.multinomial(weights, count, replacement=True, generator=generator)
    allowed = torch.tensor([thing.index for thing in THINGS if thing not in HELDOUT_THINGS], device=device)
    first = torch.randint(len(allowed), (count,), generator=generator, device=device)
    step = torch.randint(1, len(allowed), (count,), generator=generator, device=device)
    two = torch.tensor([1 in _SLOT_THINGS[name] for name in FORMS], device=device)[form]
    second = torch.where(two, allowed[(first + step) % len(allowed)], torch.zeros_like(first))
    black = torch.rand(count, generator=generator, device=device) < black_share
    return Captions(form, allowed[first], second, black)


def _form_weights() -> list[float]:
    parts = {"single": 1, "two": 1, "count two": 2, "count three": 2, "count four": 0, "mixed": 1}
    kinds = {"count two": "count", "count three": "count", "count four": "count"}
    weights = []
    for form in FORMS:
        kind = "position" if form in RELATIONS else kinds.get(form, form)
        share = 4 if form in RELATIONS else parts[form]
        weights.append(KIND_WEIGHTS[kind] / share if share else 0.0)
    return weights


def arrange(captions: Captions, generator: torch.Generator) -> Scenes:
    """Place the objects so that none touch and the stated relation clearly holds.

    Several layouts are drawn for every scene and the first good one is taken; where none is good the objects go to
    fixed cells, so the call always ends.
    """
    device = captions.form.device
    slots = torch.tensor([_SLOT_THINGS[form] for form in FORMS], device=device)[captions.form]
    thing = torch.where(slots == 0, captions.first[:, None], captions.second[:, None])
    thing = torch.where(slots < 0, torch.full_like(thing, -1), thing)
    present = thing >= 0
    bounds = torch.tensor(_RADII, device=device)[present.sum(1)]
    spread = torch.rand(thing.shape, generator=generator, device=device)
    radius = bounds[:, :1] + (bounds[:, 1:] - bounds[:, :1]) * spread
    centre = _first_good(captions.form, present, radius, generator)
    return Scenes(thing, centre, radius, captions.black)


def _first_good(form: Tensor, present: Tensor, radius: Tensor, generator: torch.Generator) -> Tensor:
    device, count = form.device, form.shape[0]
    draws = torch.rand((count, _TRIES, SLOTS, 2), generator=generator, device=device)
    reach = (radius + _MARGIN)[:, None, :, None]
    centres = reach + (CANVAS - 2 * reach) * draws
    good = _apart(centres, present, radius) & _related(form, centres)
    pick = good.to(torch.uint8).argmax(1)
    chosen = centres[torch.arange(count, device=device), pick]
    return torch.where(good.any(1)[:, None, None], chosen, _cells(form))


def _apart(centres: Tensor, present: Tensor, radius: Tensor) -> Tensor:
    good = torch.ones(centres.shape[:2], dtype=torch.bool, device=centres.device)
    for left in range(SLOTS):
        for right in range(left + 1, SLOTS):
            gap = (centres[:, :, left] - centres[:, :, right]).norm(dim=-1)
            need = (radius[:, left] + radius[:, right] + _GAP)[:, None]
            both = (present[:, left] & present[:, right])[:, None]
            good &= (gap >= need) | ~both
    return good


def _related(form: Tensor, centres: Tensor) -> Tensor:
    delta = centres[:, :, 1] - centres[:, :, 0]
    dx, dy = delta[..., 0], delta[..., 1]
    good = torch.ones_like(dx, dtype=torch.bool)
    for relation, (ahead, aside) in _axes(dx, dy).items():
        good &= (ahead >= 1.4 * aside.abs()) | (form != FORMS.index(relation))[:, None]
    return good


def _axes(dx: Tensor, dy: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """For each relation, how far the second object lies in the stated direction, and how far to the side."""
    return {"left of": (dx, dy), "right of": (-dx, dy), "above": (dy, dx), "below": (-dy, dx)}


def _cells(form: Tensor) -> Tensor:
    cells = torch.tensor(_CELLS, device=form.device).repeat(len(FORMS), 1, 1)
    near, middle, far = 17.0, 32.0, 47.0
    pairs = {
        "left of": ((near, middle), (far, middle)),
        "right of": ((far, middle), (near, middle)),
        "above": ((middle, near), (middle, far)),
        "below": ((middle, far), (middle, near)),
    }
    for relation, values in pairs.items():
        cells[FORMS.index(relation), :2] = torch.tensor(values, device=form.device)
    return cells[form]
