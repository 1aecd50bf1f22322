"""The autoencoder stage: pixels to latents and back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from solrl_tasks.pretrain.data import draw_images, to_images, to_signal
from solrl_tasks.pretrain.loop import Budget, History, Optimizer, Schedule, graphed, train
from solrl_tasks.scenes.checker import score_scenes
from solrl_tasks.scenes.layout import prompt_at


@dataclass(frozen=True)
class VaeSettings:
    """How the autoencoder is trained; `pool` is the number of rendered scenes that are drawn from."""

    batch: int = 256
    learning_rate: float = 3e-3
    pool: int = 400_000
    kl_weight: float = 1e-3
    ema_decay: float = 0.999
    seed: int = 1


def train_autoencoder(
    vae: Any, size: int, settings: VaeSettings, budget: Budget, device: torch.device, say: Callable[[str], None] = print
) -> History:
    """Train `vae` in place on `size`-pixel scenes and set its scaling and shift so that latents have mean 0, std 1.

    Loss: L1 + 2 L2 + `kl_weight` times the mean KL divergence of a latent number. Raises FloatingPointError where the
    loss stops being finite.
    """
    generator = torch.Generator(device).manual_seed(settings.seed)
    images, _ = draw_images(settings.pool, size, generator)
    vae.to(device=device, memory_format=torch.channels_last).train()
    optimizer = Optimizer(list(vae.parameters()), settings.ema_decay)

    def step() -> Tensor:
        rows = torch.randint(len(images), (settings.batch,), device=device)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda", cache_enabled=False):
            loss = _loss(vae, to_signal(images[rows]), settings.kl_weight)
        return optimizer.descend(loss)

    with torch.random.fork_rng():
        torch.manual_seed(settings.seed)
        history = train(graphed(step, device, say), optimizer, Schedule(settings.learning_rate), budget, say)
    optimizer.load_average()
    vae.to(memory_format=torch.contiguous_format).eval()
    _normalise(vae, images[: 16 * settings.batch])
    return history


def _loss(vae: Any, signal: Tensor, kl_weight: float) -> Tensor:
    posterior = vae.encode(signal).latent_dist
    mean, logvar = posterior.mean.float(), posterior.logvar.float()
    latents = mean + torch.randn_like(mean) * (0.5 * logvar).exp()
    error = vae.decode(latents).sample.float() - signal
    divergence = 0.5 * (mean.square() + logvar.exp() - 1.0 - logvar).mean()
    loss: Tensor = error.abs().mean() + 2.0 * error.square().mean() + kl_weight * divergence
    return loss


@torch.no_grad()
def _normalise(vae: Any, images: Tensor) -> None:
    latents = torch.cat([vae.encode(to_signal(part)).latent_dist.mode() for part in torch.split(images, 1024)])
    vae.register_to_config(shift_factor=float(latents.mean()), scaling_factor=float(1.0 / latents.std()))


@torch.no_grad()
def reconstruction(vae: Any, size: int, count: int, seed: int, device: torch.device) -> dict[str, float]:
    """How well pictures survive the autoencoder: mean L1 (in -1..1), and both scores before and after."""
    images, captions = draw_images(count, size, torch.Generator(device).manual_seed(seed))
    signal = to_signal(images)
    decoded = torch.cat([vae.decode(vae.encode(part).latent_dist.mode()).sample for part in torch.split(signal, 1024)])
    prompts = [prompt_at(int(index)).text for index in captions.index()]
    truth = score_scenes(images.cpu().numpy(), prompts)
    after = score_scenes(to_images(decoded).cpu().numpy(), prompts)
    return {
        "l1": float((decoded - signal).abs().mean()),
        "truth_soft": float(truth[0].mean()),
        "truth_strict": float(truth[1].mean()),
        "soft": float(after[0].mean()),
        "strict": float(after[1].mean()),
    }
