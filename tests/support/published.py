"""Models behind rewards as their authors wrote them: tensors under published names, and forward passes on those.

Written from the papers and the published structure with functions alone, to hold the converted models to.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

Tensors = dict[str, Tensor]


def _linear(tensors: Tensors, generator: torch.Generator, name: str, inputs: int, outputs: int) -> None:
    tensors[f"{name}.weight"] = torch.randn(outputs, inputs, generator=generator) * inputs**-0.5
    tensors[f"{name}.bias"] = torch.randn(outputs, generator=generator) * 0.1


def _norm(tensors: Tensors, generator: torch.Generator, name: str, width: int) -> None:
    tensors[f"{name}.weight"] = 1 + 0.1 * torch.randn(width, generator=generator)
    tensors[f"{name}.bias"] = 0.1 * torch.randn(width, generator=generator)


def _layer_norm(x: Tensor, tensors: Tensors, name: str, eps: float) -> Tensor:
    return functional.layer_norm(x, x.shape[-1:], tensors[f"{name}.weight"], tensors[f"{name}.bias"], eps)


def _apply(x: Tensor, tensors: Tensors, name: str) -> Tensor:
    return x @ tensors[f"{name}.weight"].T + tensors[f"{name}.bias"]


def _attend(query: Tensor, key: Tensor, value: Tensor, heads: int, mask: Tensor | None = None) -> Tensor:
    def split(x: Tensor) -> Tensor:
        return x.unflatten(-1, (heads, -1)).transpose(1, 2)

    logits = split(query) @ split(key).transpose(-1, -2) / math.sqrt(query.shape[-1] / heads)
    if mask is not None:
        logits = logits + mask
    return (logits.softmax(-1) @ split(value)).transpose(1, 2).flatten(2)


def open_clip_tensors(config: dict[str, Any], seed: int = 0) -> Tensors:
    """An OpenCLIP state dict for a CLIPModel configuration."""
    generator, tensors = torch.Generator().manual_seed(seed), {}
    vision, text, projection = config["vision_config"], config["text_config"], config["projection_dim"]

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    def tower(prefix: str, sizes: dict[str, Any]) -> None:
        width, inner = sizes["hidden_size"], sizes["intermediate_size"]
        for i in range(sizes["num_hidden_layers"]):
            block = f"{prefix}transformer.resblocks.{i}"
            _norm(tensors, generator, f"{block}.ln_1", width)
            _norm(tensors, generator, f"{block}.ln_2", width)
            tensors[f"{block}.attn.in_proj_weight"] = draw(3 * width, width) * width**-0.5
            tensors[f"{block}.attn.in_proj_bias"] = draw(3 * width) * 0.1
            _linear(tensors, generator, f"{block}.attn.out_proj", width, width)
            _linear(tensors, generator, f"{block}.mlp.c_fc", width, inner)
            _linear(tensors, generator, f"{block}.mlp.c_proj", inner, width)

    tensors["positional_embedding"] = draw(text["max_position_embeddings"], text["hidden_size"])
    tensors["text_projection"] = draw(text["hidden_size"], projection) * text["hidden_size"] ** -0.5
    tensors["logit_scale"] = torch.tensor(4.2)
    width, patch = vision["hidden_size"], vision["patch_size"]
    tensors["visual.class_embedding"] = draw(width)
    tensors["visual.positional_embedding"] = draw((vision["image_size"] // patch) ** 2 + 1, width)
    tensors["visual.proj"] = draw(width, projection) * width**-0.5
    tensors["visual.conv1.weight"] = draw(width, 3, patch, patch) * (3 * patch * patch) ** -0.5
    _norm(tensors, generator, "visual.ln_pre", width)
    tower("visual.", vision)
    _norm(tensors, generator, "visual.ln_post", width)
    tower("", text)
    tensors["token_embedding.weight"] = draw(text["vocab_size"], text["hidden_size"])
    _norm(tensors, generator, "ln_final", text["hidden_size"])
    return tensors


def _clip_tower(x: Tensor, tensors: Tensors, prefix: str, sizes: dict[str, Any], mask: Tensor | None) -> Tensor:
    for i in range(sizes["num_hidden_layers"]):
        block = f"{prefix}transformer.resblocks.{i}"
        seen = _layer_norm(x, tensors, f"{block}.ln_1", 1e-5)
        joint = seen @ tensors[f"{block}.attn.in_proj_weight"].T + tensors[f"{block}.attn.in_proj_bias"]
        mixed = _attend(*joint.chunk(3, dim=-1), heads=sizes["num_attention_heads"], mask=mask)
        x = x + _apply(mixed, tensors, f"{block}.attn.out_proj")
        inner = _apply(_layer_norm(x, tensors, f"{block}.ln_2", 1e-5), tensors, f"{block}.mlp.c_fc")
        active = inner * torch.sigmoid(1.702 * inner) if sizes["hidden_act"] == "quick_gelu" else functional.gelu(inner)
        x = x + _apply(active, tensors, f"{block}.mlp.c_proj")
    return x


def open_clip_cosines(tensors: Tensors, config: dict[str, Any], pixels: Tensor, ids: Tensor, end: int) -> Tensor:
    """Cosines ``[B]`` of images ``[B, 3, S, S]`` and token ids ``[B, T]`` by an OpenCLIP state dict."""
    tensors = {name: tensor.float() for name, tensor in tensors.items()}
    patch = config["vision_config"]["patch_size"]
    x = functional.conv2d(pixels, tensors["visual.conv1.weight"], stride=patch).flatten(2).transpose(1, 2)
    first = tensors["visual.class_embedding"].expand(len(x), 1, -1)
    x = torch.cat([first, x], dim=1) + tensors["visual.positional_embedding"]
    x = _layer_norm(x, tensors, "visual.ln_pre", 1e-5)
    x = _clip_tower(x, tensors, "visual.", config["vision_config"], None)[:, 0]
    images = _layer_norm(x, tensors, "visual.ln_post", 1e-5) @ tensors["visual.proj"]

    length = ids.shape[1]
    causal = torch.full((length, length), -math.inf).triu(1)
    x = tensors["token_embedding.weight"][ids] + tensors["positional_embedding"][:length]
    x = _layer_norm(_clip_tower(x, tensors, "", config["text_config"], causal), tensors, "ln_final", 1e-5)
    ends = (ids == end).int().argmax(dim=1)
    texts = x[torch.arange(len(ids)), ends] @ tensors["text_projection"]
    return functional.cosine_similarity(images, texts)


def image_reward_tensors(config: dict[str, Any], seed: int = 0) -> Tensors:
    """An ImageReward state dict, with the tensors that scoring does without."""
    generator, tensors = torch.Generator().manual_seed(seed), {}
    vision, text = config["vision_config"], config["text_config"]
    width, patch, read = vision["hidden_size"], vision["patch_size"], text["hidden_size"]

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    # Small inputs of the first norm make its epsilon visible.
    eye, small = "blip.visual_encoder", 0.003
    tensors[f"{eye}.cls_token"] = draw(1, 1, width) * small
    tensors[f"{eye}.pos_embed"] = draw(1, (vision["image_size"] // patch) ** 2 + 1, width) * small
    tensors[f"{eye}.patch_embed.proj.weight"] = draw(width, 3, patch, patch) * (3 * patch * patch) ** -0.5 * small
    tensors[f"{eye}.patch_embed.proj.bias"] = draw(width) * 0.1 * small
    for i in range(vision["num_hidden_layers"]):
        block = f"{eye}.blocks.{i}"
        _norm(tensors, generator, f"{block}.norm1", width)
        _norm(tensors, generator, f"{block}.norm2", width)
        _linear(tensors, generator, f"{block}.attn.qkv", width, 3 * width)
        _linear(tensors, generator, f"{block}.attn.proj", width, width)
        _linear(tensors, generator, f"{block}.mlp.fc1", width, vision["intermediate_size"])
        _linear(tensors, generator, f"{block}.mlp.fc2", vision["intermediate_size"], width)
    _norm(tensors, generator, f"{eye}.norm", width)
    reader = "blip.text_encoder"
    tensors[f"{reader}.embeddings.position_ids"] = torch.arange(text["max_position_embeddings"])[None]
    tensors[f"{reader}.embeddings.word_embeddings.weight"] = draw(text["vocab_size"], read)
    tensors[f"{reader}.embeddings.position_embeddings.weight"] = draw(text["max_position_embeddings"], read)
    _norm(tensors, generator, f"{reader}.embeddings.LayerNorm", read)
    for i in range(text["num_hidden_layers"]):
        layer = f"{reader}.encoder.layer.{i}"
        for kind, source in (("attention", read), ("crossattention", width)):
            _linear(tensors, generator, f"{layer}.{kind}.self.query", read, read)
            _linear(tensors, generator, f"{layer}.{kind}.self.key", source, read)
            _linear(tensors, generator, f"{layer}.{kind}.self.value", source, read)
            _linear(tensors, generator, f"{layer}.{kind}.output.dense", read, read)
            _norm(tensors, generator, f"{layer}.{kind}.output.LayerNorm", read)
        _linear(tensors, generator, f"{layer}.intermediate.dense", read, text["intermediate_size"])
        _linear(tensors, generator, f"{layer}.output.dense", text["intermediate_size"], read)
        _norm(tensors, generator, f"{layer}.output.LayerNorm", read)
    _linear(tensors, generator, "blip.vision_proj", width, 8)
    _linear(tensors, generator, "blip.text_proj", read, 8)
    return tensors | {f"mlp.{name}": tensor for name, tensor in head_tensors(read, seed).items()}


def image_reward_raw(
    tensors: Tensors, config: dict[str, Any], pixels: Tensor, ids: Tensor, mask: Tensor, heads: tuple[int, int]
) -> Tensor:
    """Raw scores ``[B]`` by an ImageReward state dict, before mean and deviation are taken out."""
    eye, patch = "blip.visual_encoder", config["vision_config"]["patch_size"]
    weight, bias = tensors[f"{eye}.patch_embed.proj.weight"], tensors[f"{eye}.patch_embed.proj.bias"]
    x = functional.conv2d(pixels, weight, bias, stride=patch).flatten(2).transpose(1, 2)
    x = torch.cat([tensors[f"{eye}.cls_token"].expand(len(x), -1, -1), x], dim=1) + tensors[f"{eye}.pos_embed"]
    for i in range(config["vision_config"]["num_hidden_layers"]):
        block = f"{eye}.blocks.{i}"
        joint = _apply(_layer_norm(x, tensors, f"{block}.norm1", 1e-6), tensors, f"{block}.attn.qkv")
        x = x + _apply(_attend(*joint.chunk(3, dim=-1), heads=heads[0]), tensors, f"{block}.attn.proj")
        inner = _apply(_layer_norm(x, tensors, f"{block}.norm2", 1e-6), tensors, f"{block}.mlp.fc1")
        x = x + _apply(functional.gelu(inner), tensors, f"{block}.mlp.fc2")
    seen = _layer_norm(x, tensors, f"{eye}.norm", 1e-6)

    reader, hidden = "blip.text_encoder", (1.0 - mask[:, None, None, :].float()) * -10000.0
    x = tensors[f"{reader}.embeddings.word_embeddings.weight"][ids]
    x = x + tensors[f"{reader}.embeddings.position_embeddings.weight"][: ids.shape[1]]
    x = _layer_norm(x, tensors, f"{reader}.embeddings.LayerNorm", 1e-12)
    for i in range(config["text_config"]["num_hidden_layers"]):
        layer = f"{reader}.encoder.layer.{i}"
        for kind, source, ignored in (("attention", x, hidden), ("crossattention", seen, None)):
            source = x if kind == "attention" else source
            parts = (x, source, source)
            names = ("query", "key", "value")
            projected = [_apply(p, tensors, f"{layer}.{kind}.self.{n}") for p, n in zip(parts, names, strict=True)]
            mixed = _apply(_attend(*projected, heads=heads[1], mask=ignored), tensors, f"{layer}.{kind}.output.dense")
            x = _layer_norm(mixed + x, tensors, f"{layer}.{kind}.output.LayerNorm", 1e-12)
        inner = functional.gelu(_apply(x, tensors, f"{layer}.intermediate.dense"))
        out = _apply(inner, tensors, f"{layer}.output.dense")
        x = _layer_norm(out + x, tensors, f"{layer}.output.LayerNorm", 1e-12)
    return head_scores({name[4:]: t for name, t in tensors.items() if name.startswith("mlp.")}, x[:, 0])


def head_tensors(width: int, seed: int = 0) -> Tensors:
    """A state dict of the aesthetic head: linear layers where dropout stood between in training."""
    generator, tensors = torch.Generator().manual_seed(seed + 1), {}
    for place, (inputs, outputs) in {
        0: (width, 1024), 2: (1024, 128), 4: (128, 64), 6: (64, 16), 7: (16, 1),
    }.items():  # fmt: skip
        _linear(tensors, generator, f"layers.{place}", inputs, outputs)
    return tensors


def head_scores(tensors: Tensors, embeddings: Tensor) -> Tensor:
    """Scores ``[B]`` of embeddings ``[B, width]``."""
    for place in (0, 2, 4, 6, 7):
        embeddings = _apply(embeddings, tensors, f"layers.{place}")
    return embeddings[:, 0]
