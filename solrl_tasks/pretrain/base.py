"""The base stage: a rectified flow on scene latents, the text encoders trained along with the transformer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from solrl_tasks.pretrain.data import CaptionNoise, Corrupter, Latents, token_table
from solrl_tasks.pretrain.loop import Budget, History, Optimizer, Schedule, graphed, train


class _FixedRope(nn.Module):
    """The rotary tables of one grid, computed once: the transformer would make them anew on the host every step."""

    cosine: Tensor
    sine: Tensor

    def __init__(self, rope: Any, ids: Tensor) -> None:
        super().__init__()
        cosine, sine = rope(ids)
        self.register_buffer("cosine", cosine, persistent=False)
        self.register_buffer("sine", sine, persistent=False)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG002 (the interface's)
        return self.cosine, self.sine


def image_ids(side: int) -> Tensor:
    """FLUX position ids of a `side` x `side` grid of tokens, float32 [side * side, 3]."""
    rows, columns = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    return torch.stack([torch.zeros_like(rows), rows, columns], -1).reshape(-1, 3).float()


class VelocityModel(nn.Module):
    """The trained parts of a FluxPipeline as one module: caption numbers and noisy tokens in, velocities out."""

    clip_ids: Tensor
    t5_ids: Tensor
    image_ids: Tensor
    text_ids: Tensor

    def __init__(self, pipeline: Any, device: torch.device, compiled: bool = False) -> None:
        """Takes the pipeline's modules to `device`; call `release` to give the pipeline back as it was."""
        super().__init__()
        _plain_attention(device)
        self.device = device
        self._text: tuple[Tensor, Tensor] | None = None
        self.transformer = pipeline.transformer.to(device)
        self.clip, self.t5 = pipeline.text_encoder.to(device), pipeline.text_encoder_2.to(device)
        self.side = int(pipeline.vae.config.sample_size) // pipeline.vae_scale_factor // 2
        self.register_buffer("clip_ids", token_table(pipeline.tokenizer))
        self.register_buffer("t5_ids", token_table(pipeline.tokenizer_2))
        self.register_buffer("image_ids", image_ids(self.side))
        self.register_buffer("text_ids", torch.zeros(self.t5_ids.shape[1], 3))
        self.to(device)
        self._rope = self.transformer.pos_embed
        self.transformer.pos_embed = _FixedRope(self._rope, torch.cat([self.text_ids, self.image_ids])).to(device)
        self._run: Any = torch.compile(self.transformer, dynamic=False) if compiled else self.transformer

    def release(self) -> None:
        """Undo what was done to the pipeline's transformer."""
        self.transformer.pos_embed = self._rope

    def encode(self, captions: Tensor) -> tuple[Tensor, Tensor]:
        """Text tokens [B, 16, width] and the pooled vector [B, width] of caption numbers [B], in float32."""
        if self._text is not None:
            return self._text[0][captions], self._text[1][captions]
        tokens = self.t5(self.t5_ids[captions])[0]
        return tokens, self.clip(self.clip_ids[captions]).pooler_output

    @torch.no_grad()
    def freeze_text(self) -> None:
        """Train the text encoders no further and look their output up: a third less work a step."""
        self._text = None
        rows = torch.arange(len(self.clip_ids), device=self.device)
        parts = [self.encode(part) for part in torch.split(rows, 2048)]
        self._text = torch.cat([tokens for tokens, _ in parts]), torch.cat([pooled for _, pooled in parts])
        self.clip.requires_grad_(False)
        self.t5.requires_grad_(False)

    def velocity(self, x: Tensor, sigma: Tensor, tokens: Tensor, pooled: Tensor) -> Tensor:
        """The velocity eps - x0 at x [B, tokens, channels] and sigma [B]; bfloat16 inside on a GPU."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=x.is_cuda, cache_enabled=False):
            out = self._run(
                hidden_states=x,
                encoder_hidden_states=tokens,
                pooled_projections=pooled,
                timestep=sigma,
                img_ids=self.image_ids,
                txt_ids=self.text_ids,
                return_dict=False,
            )[0]
        return torch.as_tensor(out).float()


@dataclass(frozen=True)
class BaseSettings:
    """How the base is trained. Times are logistic-normal, a share of them uniform so that the ends are learned too.

    With `train_text` false the text encoders stay as they are, as in a second leg or in straightening.
    """

    batch: int = 2048
    learning_rate: float = 2e-3
    warmup: int = 500
    ema_decay: float = 0.9995
    uniform_share: float = 0.25
    train_text: bool = True
    noise: CaptionNoise = field(default_factory=CaptionNoise)
    seed: int = 2


def draw_times(batch: int, uniform_share: float, device: torch.device) -> Tensor:
    """Training times in (0, 1), float32 [batch]; 1 is noise."""
    uniform = torch.rand(batch, device=device)
    bell = torch.sigmoid(torch.randn(batch, device=device))
    return torch.where(torch.rand(batch, device=device) < uniform_share, uniform, bell)


def train_base(
    model: VelocityModel,
    data: Latents,
    settings: BaseSettings,
    budget: Budget,
    say: Callable[[str], None] = print,
    keep: Callable[[dict[str, Tensor]], None] | None = None,
) -> History:
    """Train transformer and text encoders in place: x_t = (1-t) x0 + t eps, target eps - x0 (arXiv 2209.03003).

    Data without its own noise gets fresh noise and corrupted captions; data with noise (pairs that a model made) is
    used as it is. `keep` is given the averaged weights about once a minute. The weights end as their average.
    Raises FloatingPointError where the loss stops being finite.
    """
    device = model.device
    if not settings.train_text:
        model.freeze_text()
    corrupter = Corrupter(settings.noise, device)
    model.train()
    optimizer = Optimizer(list(model.parameters()), settings.ema_decay)
    captions = data.captions.index()

    def step() -> Tensor:
        rows = torch.randint(len(captions), (settings.batch,), device=device)
        clean = data.clean[rows].float()
        if data.noise is None:
            noise, chosen = torch.randn_like(clean), corrupter(data.captions.pick(rows)).index()
            time = draw_times(settings.batch, settings.uniform_share, device)
        else:
            noise, chosen = data.noise[rows].float(), captions[rows]
            # The picture has to be read off the noise alone near time 1, the hardest part of a straight flow.
            time = 1.0 - torch.rand(settings.batch, device=device) ** 1.5
        mixed = clean + time[:, None, None] * (noise - clean)
        predicted = model.velocity(mixed, time, *model.encode(chosen))
        return optimizer.descend((predicted - (noise - clean)).square().mean())

    def averaged() -> dict[str, Tensor]:
        names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
        return dict(zip(names, optimizer.average, strict=True))

    with torch.random.fork_rng():
        torch.manual_seed(settings.seed)
        schedule = Schedule(settings.learning_rate, settings.warmup)
        saver = None if keep is None else (lambda: keep(averaged()))
        history = train(graphed(step, device, say), optimizer, schedule, budget, say, saver)
    optimizer.load_average()
    model.eval()
    return history


def _plain_attention(device: torch.device) -> None:
    """Leave only the plain attention kernel, before anything is compiled: the fused ones fail in backward here."""
    if device.type == "cuda":
        torch.backends.cuda.enable_flash_sdp(False)
        torch.backends.cuda.enable_mem_efficient_sdp(False)
        torch.backends.cuda.enable_cudnn_sdp(False)
