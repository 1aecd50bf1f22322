import math

import pytest
import torch

from solrl_tasks.bench.comparison.gradients import _along, mean_pairwise_cosine, measure_gradients
from solrl_tasks.config.recipe import LoraSpec, ModelSpec
from solrl_tasks.sampling.sde.walk import Path
from solrl_tasks.workers.device import Device


def test_cosines_by_hand():
    assert mean_pairwise_cosine(torch.tensor([[1.0, 0.0], [3.0, 0.0]])) == pytest.approx(1)
    assert mean_pairwise_cosine(torch.tensor([[1.0, 0.0], [0.0, 2.0]])) == pytest.approx(0)
    # Pairs: 0, 1/sqrt(2), 1/sqrt(2).
    three = torch.tensor([[5.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    assert mean_pairwise_cosine(three) == pytest.approx(math.sqrt(2) / 3)
    assert math.isnan(mean_pairwise_cosine(torch.tensor([[0.0, 0.0], [0.0, 1.0]])))
    with pytest.raises(ValueError, match="two gradients"):
        mean_pairwise_cosine(torch.ones(1, 2))
    with pytest.raises(ValueError, match=r"gradients \[1\] of 3 are not finite"):
        mean_pairwise_cosine(torch.tensor([[1.0, 0.0], [math.nan, 1.0], [1.0, 1.0]]))


def test_the_states_of_a_path_are_met_again():
    states = torch.randn(1, 4, 2, 3, 3, generator=torch.Generator().manual_seed(0))
    batch = _along(Path(torch.full((1, 2, 3, 3), 0.5), states), [1.0, 0.6, 0.2])
    torch.testing.assert_close(batch.x_t, states[0, :3], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(batch.eps[0], states[0, 0])


def test_gradients_of_samples_are_compared_and_do_not_depend_on_company(micro_model):
    model = ModelSpec(source=str(micro_model), resolution=32)
    device = Device(model, torch.device("cpu"))
    lora = LoraSpec(rank=2, alpha=4)
    found = measure_gradients(device, lora, ["a red circle", "a blue square"], seeds=2, steps=4)
    assert (found.samples, found.gradients) == (4, 3)
    for one in (found.renoised, found.path, found.policy):
        assert one.n == 4 and one.excluded == 0 and -1 <= one.mean <= 1
    alone = [measure_gradients(device, lora, [text], 2, steps=4) for text in ("a red circle", "a blue square")]
    assert found.path.mean == pytest.approx(sum(one.path.mean for one in alone) / 2, abs=1e-4)
    assert found.renoised.mean != found.path.mean
