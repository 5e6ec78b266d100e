"""What equivalence trains and how runs are cut: models, bounds, layouts and groups of them.

matrix.py runs them; mixes.py says which strategies a layout combines.
"""

import math

SPACE = 32  # the token

# Largest deviation: of loss and norm relative to the one-rank run's; `param`, of one element beside its tensor's
# largest, or beside steps x lr, the way that AdamW may carry one, if that is more; `rms`, of all elements together,
# beside steps x lr.
#
# bf16 rounds each activation by up to u = 2^-9, and a layout moves the roundings: a product whose sum is cut over the
# ranks is rounded on each of them before the terms are added, where one rank rounds the whole sum. Per layer that
# touches the two projections into the residual stream, and in backward the gradients of the two norms' outputs; two
# layers and the logits make 9 such places. As independent errors of u / sqrt(3) they move an element by 1.7 u = 0.34%
# of the tensor's usual size.
#   loss   4, the mean over 128 tokens of differences of logits of size 1: 0.34% / sqrt(128) / 4 = 1e-4 of it; ten steps
#          of slightly different parameters add to that, so 1e-3.
#   norm   a root of a sum over 20 000 elements; but those share the roundings nearest to the loss: 0.34%, held to 1%.
#   param  AdamW moves an element by lr however small its gradient is, so where that is below the error, its direction
#          is noise and two runs end up to 2 steps x lr apart: no more than AdamW can do, as a guard against nonsense.
#   rms    what says that training is the same: an error of 0.34% of the usual gradient changes the direction of the
#          elements that are smaller than it, 0.3% of a normal distribution, by up to 2, and of the others by the ratio:
#          sqrt(0.003 x 4 / 3) = 6% altogether, held to 10%.
BOUNDS = {
    "fp32": {"loss": 2e-5, "norm": 2e-5, "param": 1e-4, "rms": 1e-4},
    "bf16": {"loss": 1e-3, "norm": 1e-2, "param": 2.0, "rms": 0.1},
}

GPT2 = {"gpt.family": "gpt2"}
LLAMA = {"gpt.family": "llama", "gpt.kv_heads": 4}
QWEN = {**LLAMA, "gpt.qkv_bias": "true", "gpt.qk_norm": "true"}
TIED, UNTIED = {"gpt.tied": "true"}, {"gpt.tied": "false"}
BF16 = {"precision.compute": "bf16"}
MASKED = {"data.ignore": SPACE}
# all but the digit 9: ranks and micro-batches without a target
HARDLY_ANY = {"data.ignore": ", ".join(str(ord(token)) for token in " +:012345678")}
PRINTED = {"data.validation": 0.2, "job.sample": "12+30:", "job.sample_tokens": 30, "job.temperature": 1}


# Layouts.

class Layout:
    """How one run is cut: overrides of the manifest on top of what is trained."""

    def __init__(self, tp=1, dp=1, sp="off", parts=1, order="tp, dp", **more):
        self.ranks = tp * dp
        self.overrides = {"strategies.chain": order, "tp.size": tp, "dp.size": dp, "tp.sequence_parallel": sp,
                          "data.micro_batches": parts}
        self.overrides.update({key.replace("__", "."): value for key, value in more.items()})
        words = [f"tp {tp}", f"dp {dp}"] + (["sp on"] if sp == "on" else []) + ([f"parts {parts}"] if parts > 1 else [])
        words += ["dp first"] if order.startswith("dp") else []
        words += [f"{key.split('__')[1]} {value}" for key, value in more.items()]
        self.text = ", ".join(words)


def grid(tps=(1, 2, 4), dps=(1, 2), parts=(1, 4), **more):
    """All of tp x sequence_parallel x dp x micro-batches but the one-rank run itself."""
    return [Layout(tp, dp, sp, n, **more) for tp in tps for sp in (("off", "on") if tp > 1 else ("off",))
            for dp in dps for n in parts if (tp, dp, n) != (1, 1, 1)]


class Chain:
    """A chain by name: sizes and other options of each strategy as overrides, `fsdp=3, fsdp__level="full"`."""

    def __init__(self, chain, parts=1, **options):
        strategies = chain.split(", ")
        self.ranks = math.prod(options.get(name, 1) for name in strategies)
        keys = {name: name.replace("__", ".") if "__" in name else f"{name}.size" for name in options}
        self.overrides = {"strategies.chain": chain, "data.micro_batches": parts,
                          **{keys[name]: value for name, value in options.items()}}
        words = [f"chain {chain.replace(', ', '+')}"] + ([f"parts {parts}"] if parts > 1 else [])
        words += [f"{name.replace('__', '.')} {str(value).replace(', ', ':')}" for name, value in options.items()]
        self.text = ", ".join(words)


class Group:
    """One thing that is trained, in several layouts. `reference`: what the one-rank run has beside it."""

    def __init__(self, name, training, layouts, reference=None, precision="fp32"):
        self.name, self.training, self.layouts = name, training, layouts
        self.reference, self.bounds = reference or {}, BOUNDS[precision]
