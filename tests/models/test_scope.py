"""Scope rules: full paths, every layer accounted for, idle rules refused."""

import pytest
from torch import nn

from solrl_tasks.models.scope import OUTSIDE, LayerScope, ScopeError, matmul_paths


def make_net() -> nn.Module:
    net = nn.Module()
    net.blocks = nn.ModuleList(
        nn.ModuleDict({"norm": nn.Linear(4, 8), "proj_out": nn.Linear(4, 4), "act": nn.GELU()}) for _ in range(2)
    )
    net.proj_out = nn.Linear(4, 4)
    net.point = nn.Conv2d(4, 4, 1)
    net.depthwise = nn.Conv2d(4, 4, 3, groups=4)
    return net


def test_rules_match_the_full_path():
    match = LayerScope((r"blocks\..*",), ((r".*norm.*", "adaptive norm"),)).resolve(make_net())
    assert match.replaced == ("blocks.0.proj_out", "blocks.1.proj_out")
    assert match.skipped == {
        "blocks.0.norm": "adaptive norm",
        "blocks.1.norm": "adaptive norm",
        "proj_out": OUTSIDE,
        "point": OUTSIDE,
    }


def test_only_layers_that_are_one_matmul_a_position_count():
    assert "point" in matmul_paths(make_net())
    others = [
        nn.Conv2d(4, 4, 1, stride=2),
        nn.Conv2d(4, 4, 1, groups=2),
        nn.Conv2d(4, 4, 3),
        nn.Conv1d(4, 4, 1),
    ]
    assert matmul_paths(nn.ModuleList(others)) == []


@pytest.mark.parametrize(
    ("scope", "rule"),
    [
        (LayerScope((r"layers\..*",)), r"layers\\..*"),
        (LayerScope((r"blocks\..*", r"blocks")), "'blocks'"),
        (LayerScope((r"blocks\..*",), ((r"norm", "partial match is no match"),)), "'norm'"),
    ],
)
def test_a_rule_that_matches_nothing_is_refused(scope, rule):
    with pytest.raises(ScopeError, match="matches none of the 6") as caught:
        scope.resolve(make_net())
    assert rule.strip("'") in str(caught.value)
