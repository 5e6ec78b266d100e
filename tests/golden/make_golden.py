#!/usr/bin/env python3
"""Writes the numbers that tests/golden compares with: three tiny models trained by PyTorch.

Run by hand where PyTorch is installed (Debian's python3-torch); the results are committed, so
the tests need neither. Arithmetic is float64, so that what is stored is the truth rounded to
f32 and not another program's rounding errors. README.md describes the files.
"""

import json
import math
import pathlib
import struct

import torch
from torch.nn import functional as F

STEPS, BATCH, SEQUENCE, VOCAB = 10, 4, 16, 61
LR, BETAS, DECAY, CLIP = 1e-3, (0.9, 0.95), 0.1, 1.0
# Not 1e-8: the gradient of GPT-2's key bias is zero in exact arithmetic (softmax ignores a shift), and
# AdamW would blow its rounding noise up to whole steps. So would any other program's, differently.
EPS = 1e-6
MASKED = -1

CASES = {
    "gpt2": dict(std=0.03, family="gpt2", layers=2, hidden=32, heads=4, kv_heads=4, mlp=128, tied=True, norm_eps=1e-5),
    "llama": dict(std=0.1, family="llama", layers=2, hidden=32, heads=4, kv_heads=2, mlp=48, tied=False, norm_eps=1e-6),
    # Qwen's variations on Llama: biases, normed heads, tied head, heads wider than hidden / heads.
    "qwen": dict(std=0.1, family="llama", layers=2, hidden=32, heads=4, kv_heads=1, head_dim=12, mlp=48, tied=True,
                 norm_eps=1e-6, qkv_bias=True, qk_norm=True),
}


class Config:
    def __init__(self, family, layers, hidden, heads, kv_heads, mlp, tied, norm_eps, head_dim=None, qkv_bias=False,
                 qk_norm=False):
        self.family, self.layers, self.hidden, self.heads, self.kv_heads = family, layers, hidden, heads, kv_heads
        self.head_dim, self.mlp, self.tied, self.norm_eps = head_dim or hidden // heads, mlp, tied, norm_eps
        self.qkv_bias, self.qk_norm = qkv_bias, qk_norm
        self.q_dim, self.kv_dim = heads * self.head_dim, kv_heads * self.head_dim


# Parameters: Hugging Face's names and shapes.

def gpt2_shapes(c):
    shapes = {"transformer.wte.weight": (VOCAB, c.hidden), "transformer.wpe.weight": (SEQUENCE, c.hidden)}
    for n in range(c.layers):
        h = f"transformer.h.{n}."
        linears = {"attn.c_attn": (c.hidden, c.q_dim + 2 * c.kv_dim), "attn.c_proj": (c.q_dim, c.hidden),
                   "mlp.c_fc": (c.hidden, c.mlp), "mlp.c_proj": (c.mlp, c.hidden)}
        for name, shape in linears.items():
            shapes[h + name + ".weight"] = shape  # Conv1D: [in, out]
            shapes[h + name + ".bias"] = shape[1:]
        for name in ("ln_1", "ln_2"):
            shapes[h + name + ".weight"] = shapes[h + name + ".bias"] = (c.hidden,)
    shapes["transformer.ln_f.weight"] = shapes["transformer.ln_f.bias"] = (c.hidden,)
    if not c.tied:
        shapes["lm_head.weight"] = (VOCAB, c.hidden)
    return shapes


def llama_shapes(c):
    shapes = {"model.embed_tokens.weight": (VOCAB, c.hidden)}
    for n in range(c.layers):
        h = f"model.layers.{n}."
        for name, out in (("q", c.q_dim), ("k", c.kv_dim), ("v", c.kv_dim)):
            shapes[f"{h}self_attn.{name}_proj.weight"] = (out, c.hidden)
            if c.qkv_bias:
                shapes[f"{h}self_attn.{name}_proj.bias"] = (out,)
            if c.qk_norm and name != "v":
                shapes[f"{h}self_attn.{name}_norm.weight"] = (c.head_dim,)
        shapes[h + "self_attn.o_proj.weight"] = (c.hidden, c.q_dim)
        shapes[h + "mlp.gate_proj.weight"] = shapes[h + "mlp.up_proj.weight"] = (c.mlp, c.hidden)
        shapes[h + "mlp.down_proj.weight"] = (c.hidden, c.mlp)
        shapes[h + "input_layernorm.weight"] = shapes[h + "post_attention_layernorm.weight"] = (c.hidden,)
    shapes["model.norm.weight"] = (c.hidden,)
    if not c.tied:
        shapes["lm_head.weight"] = (VOCAB, c.hidden)
    return shapes


def initial(shapes, std, generator):
    """Far from the usual start: every gain and bias differs from 1 and 0, so that each one matters."""
    params = {}
    for name, shape in shapes.items():
        value = std * torch.randn(shape, generator=generator, dtype=torch.float64)
        if len(shape) == 1 and name.endswith("weight"):
            value += 1
        params[name] = value.float().double().requires_grad_()
    return params


# Forward passes.

def attend(q, k, v, c):
    """Causal attention of [B, S, heads * D]; query head h reads key head h // (heads / kv_heads)."""
    def split(x, heads):
        return x.unflatten(-1, (heads, c.head_dim)).transpose(1, 2)
    q, k, v = split(q, c.heads), split(k, c.kv_heads), split(v, c.kv_heads)
    k, v = (x.repeat_interleave(c.heads // c.kv_heads, dim=1) for x in (k, v))
    scores = q @ k.transpose(-1, -2) / math.sqrt(c.head_dim)
    future = torch.ones(SEQUENCE, SEQUENCE, dtype=torch.bool).triu(1)
    return (scores.masked_fill(future, -math.inf).softmax(-1) @ v).transpose(1, 2).flatten(-2)


def gpt2_logits(p, c, tokens):
    def norm(x, name):
        return F.layer_norm(x, (c.hidden,), p[name + ".weight"], p[name + ".bias"], c.norm_eps)

    def conv1d(x, name):
        return x @ p[name + ".weight"] + p[name + ".bias"]

    x = p["transformer.wte.weight"][tokens] + p["transformer.wpe.weight"]
    for n in range(c.layers):
        h = f"transformer.h.{n}."
        qkv = conv1d(norm(x, h + "ln_1"), h + "attn.c_attn").split((c.q_dim, c.kv_dim, c.kv_dim), -1)
        x = x + conv1d(attend(*qkv, c), h + "attn.c_proj")
        a = conv1d(norm(x, h + "ln_2"), h + "mlp.c_fc")
        a = 0.5 * a * (1 + torch.tanh(math.sqrt(2 / math.pi) * (a + 0.044715 * a ** 3)))
        x = x + conv1d(a, h + "mlp.c_proj")
    return norm(x, "transformer.ln_f") @ p["transformer.wte.weight" if c.tied else "lm_head.weight"].T


def rotate(x, c):
    """Rotary positions: dimension d is paired with d + D / 2, at frequency 10000^(-2 d / D)."""
    half = c.head_dim // 2
    frequency = 10000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
    angle = torch.arange(SEQUENCE, dtype=torch.float64)[:, None, None] * frequency
    a, b = x.unflatten(-1, (-1, 2, half)).unbind(-2)
    return torch.cat((a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()), -1).flatten(-2)


def llama_logits(p, c, tokens):
    def norm(x, name):
        return x * (x.square().mean(-1, keepdim=True) + c.norm_eps).rsqrt() * p[name + ".weight"]

    def linear(x, name):
        return F.linear(x, p[name + ".weight"], p.get(name + ".bias"))

    def head_norm(x, name):
        return norm(x.unflatten(-1, (-1, c.head_dim)), name).flatten(-2) if c.qk_norm else x

    x = p["model.embed_tokens.weight"][tokens]
    for n in range(c.layers):
        h = f"model.layers.{n}."
        y = norm(x, h + "input_layernorm")
        q, k, v = (linear(y, f"{h}self_attn.{name}_proj") for name in "qkv")
        q, k = head_norm(q, h + "self_attn.q_norm"), head_norm(k, h + "self_attn.k_norm")
        x = x + linear(attend(rotate(q, c), rotate(k, c), v, c), h + "self_attn.o_proj")
        y = norm(x, h + "post_attention_layernorm")
        x = x + linear(F.silu(linear(y, h + "mlp.gate_proj")) * linear(y, h + "mlp.up_proj"), h + "mlp.down_proj")
    return norm(x, "model.norm") @ p["model.embed_tokens.weight" if c.tied else "lm_head.weight"].T


# Training.

def batches(generator):
    """Tokens with some order in them; labels partly masked, unevenly between sequences."""
    text = torch.randint(VOCAB, (STEPS, BATCH, SEQUENCE + 1), generator=generator)
    text[..., 1::3] = (text[..., 0:-1:3] * 7 + 3) % VOCAB
    tokens, labels = text[..., :-1].clone(), text[..., 1:].clone()
    labels[torch.rand(labels.shape, generator=generator) < 0.1] = MASKED
    labels[2, 1, 5:] = MASKED  # a sequence with few targets
    labels[4, 3] = MASKED      # and one with none
    return tokens, labels


def train(config, params, tokens, labels):
    logits_of = gpt2_logits if config.family == "gpt2" else llama_logits
    matrices = [p for p in params.values() if p.ndim > 1]
    vectors = [p for p in params.values() if p.ndim == 1]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": DECAY},
                                   {"params": vectors, "weight_decay": 0.0}], lr=LR, betas=BETAS, eps=EPS)
    record = {"loss": [], "grad_norm": [], "targets": []}
    grads = {}
    for step in range(STEPS):
        logits = logits_of(params, config, tokens[step])
        loss = F.cross_entropy(logits.flatten(0, 1), labels[step].flatten(), ignore_index=MASKED)
        optimizer.zero_grad()
        loss.backward()
        grads[step + 1] = {name: p.grad.clone() for name, p in params.items()}
        norm = torch.nn.utils.clip_grad_norm_(params.values(), CLIP)
        optimizer.step()
        record["loss"].append(loss.item())
        record["grad_norm"].append(norm.item())
        record["targets"].append(int((labels[step] >= 0).sum()))
    return record, grads


# Files.

def save(path, tensors):
    """safetensors: u64 length, JSON padded to 8 bytes, data in the order of the header."""
    header, data = {}, b""
    for name, tensor in tensors.items():
        dtype, kind = ("F32", "<f4") if tensor.is_floating_point() else ("I32", "<i4")
        raw = tensor.detach().numpy().astype(kind)
        header[name] = {"dtype": dtype, "shape": list(raw.shape),
                        "data_offsets": [len(data), len(data) + raw.nbytes]}
        data += raw.tobytes()
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def manifest(config):
    """The settings as sections of a manifest."""
    def word(value):
        return str(value).lower() if isinstance(value, bool) else str(value)
    model = {"family": config.family, "layers": config.layers, "hidden": config.hidden, "heads": config.heads,
             "kv_heads": config.kv_heads, "head_dim": config.head_dim, "mlp": config.mlp, "vocab": VOCAB,
             "positions": SEQUENCE, "tied": config.tied, "norm_eps": config.norm_eps}
    if config.family == "llama":
        model.update(qkv_bias=config.qkv_bias, qk_norm=config.qk_norm)
    sections = {
        "job": {"steps": STEPS},
        "model": {"plugin": "gpt"},
        "gpt": model,
        "data": {"path": "batches.safetensors", "sequence": SEQUENCE, "batch": BATCH},
        "optimizer": {"kind": "adamw", "lr": LR, "schedule": "constant", "warmup_steps": 0, "beta1": BETAS[0],
                      "beta2": BETAS[1], "eps": EPS, "weight_decay": DECAY, "clip": CLIP},
        "precision": {"compute": "fp32"},
    }
    return "\n".join(f"[{name}]\n" + "".join(f"{key} = {word(value)}\n" for key, value in keys.items())
                     for name, keys in sections.items())


def make(name, options, seed):
    std = options.pop("std")
    config = Config(**options)
    generator = torch.Generator().manual_seed(seed)
    params = initial((gpt2_shapes if config.family == "gpt2" else llama_shapes)(config), std, generator)
    tokens, labels = batches(generator)
    folder = pathlib.Path(__file__).parent / "data" / name
    folder.mkdir(parents=True, exist_ok=True)
    save(folder / "initial.safetensors", params)
    save(folder / "batches.safetensors", {"tokens": tokens, "labels": labels})
    record, grads = train(config, params, tokens, labels)
    for step, grad in grads.items():
        save(folder / f"grad_{step}.safetensors", grad)
    save(folder / "final.safetensors", params)
    (folder / "steps.json").write_text(json.dumps(record, indent=1) + "\n")
    (folder / "job.ini").write_text(manifest(config))
    print(name, "loss", *(f"{x:.4f}" for x in record["loss"]))
    print(name, "grad norm", *(f"{x:.4f}" for x in record["grad_norm"]))


if __name__ == "__main__":
    for index, (case, case_options) in enumerate(CASES.items()):
        make(case, case_options, seed=1000 + index)
