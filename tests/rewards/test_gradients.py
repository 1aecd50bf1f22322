"""Rewards with gradients: the same values, and a refusal of those without."""

import numpy as np
import pytest
import torch

from solrl_tasks.config.recipe import RewardSpec
from solrl_tasks.rewards.brightness import LUMA, Brightness
from solrl_tasks.rewards.gradients import require_differentiable
from solrl_tasks.rewards.scoring import make_reward, score


def test_brightness_of_known_images():
    images = np.zeros((4, 5, 6, 3), dtype=np.uint8)
    images[1] = 255
    images[2, :, :, 1] = 255
    images[3, :, :3] = 255
    scores = score(make_reward(RewardSpec(name="brightness")), images, [""] * 4, [{}] * 4)
    assert scores.values.tolist() == pytest.approx([0, 1, LUMA[1], 0.5], abs=1e-6)


def test_the_gradient_belongs_to_the_score():
    images = np.random.default_rng(0).integers(0, 256, (2, 4, 4, 3), dtype=np.uint8)
    pixels = (torch.from_numpy(images).permute(0, 3, 1, 2).double() / 255).requires_grad_()
    scores = Brightness().differentiable(pixels, ["", ""], [{}, {}])
    assert scores.tolist() == pytest.approx(Brightness()(images, ["", ""], [{}, {}]))
    (gradient,) = torch.autograd.grad(scores.sum(), pixels)
    assert torch.allclose(gradient, torch.tensor(LUMA, dtype=torch.float64).reshape(1, 3, 1, 1).expand(2, 3, 4, 4) / 16)


def test_rewards_without_a_gradient_are_refused_by_name():
    require_differentiable(RewardSpec(name="brightness"), "x")
    require_differentiable(RewardSpec(name="mine", use="brightness"), "x")
    with pytest.raises(ValueError, match=r"colourfulness is not differentiable.*brightness"):
        require_differentiable(RewardSpec(name="colourfulness"), "adjoint-matching")
    with pytest.raises(ValueError, match="normalize to none"):
        require_differentiable(RewardSpec(name="brightness", normalize="pool"), "adjoint-matching")
