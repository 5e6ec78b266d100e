"""One GPT-2 124M training step in plain PyTorch, for tools/bench/train: prints the median step in milliseconds.

    train_torch.py fp32|bf16 STEPS BATCH SEQUENCE

The same model, optimizer and clipping as the Tenon run; bf16 by autocast. Attention by torch's own fused function
where the version has one, else by masked softmax.
"""
import math
import statistics
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.proj = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.fc, self.out = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def attention(self, x):
        batch, sequence, hidden = x.shape
        q, k, v = (t.view(batch, sequence, self.heads, -1).transpose(1, 2) for t in self.qkv(x).split(hidden, dim=2))
        if hasattr(F, "scaled_dot_product_attention"):
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            mask = torch.ones(sequence, sequence, dtype=torch.bool).tril()
            scores = (q @ k.transpose(-2, -1)) / math.sqrt(q.shape[-1])
            y = scores.masked_fill(~mask, float("-inf")).softmax(-1) @ v
        return self.proj(y.transpose(1, 2).reshape(batch, sequence, hidden))

    def forward(self, x):
        x = x + self.attention(self.ln_1(x))
        return x + self.out(F.gelu(self.fc(self.ln_2(x))))


class Model(nn.Module):
    def __init__(self, vocab=50257, positions=1024, hidden=768, layers=12, heads=12):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, hidden), nn.Embedding(positions, hidden)
        self.blocks = nn.ModuleList(Block(hidden, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(hidden)

    def forward(self, tokens, labels):
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits = self.ln_f(x) @ self.wte.weight.t()
        return F.cross_entropy(logits.view(-1, logits.shape[-1]).float(), labels.view(-1))


def main():
    dtype, steps, batch, sequence = sys.argv[1], *map(int, sys.argv[2:5])
    torch.manual_seed(1)
    torch.set_num_threads(2)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1)
    times = []
    for _ in range(steps):
        tokens = torch.randint(0, 250, (batch, sequence + 1))
        began = time.monotonic()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == "bf16"):
            loss = model(tokens[:, :-1], tokens[:, 1:].contiguous())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        loss.item()
        times.append((time.monotonic() - began) * 1e3)
    print(statistics.median(times[1:]))


if __name__ == "__main__":
    main()
