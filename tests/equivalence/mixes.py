"""Which strategies a layout combines, and the pairs of them that some layout must have.

A feature is one way of a strategy (fsdp with level = full) or one property of what is trained (tied embeddings). Two
features of the same kind exclude each other; every other pair must be in a layout of some suite, so that a new suite
or a change of an old one cannot lose one: `matrix.py pairs` fails and says which are missing.
"""

import itertools

from layouts import (BF16, GPT2, HARDLY_ANY, LLAMA, MASKED, PRINTED, QWEN, TIED, UNTIED, Chain, Group)

# kind: its features
KINDS = {
    "tensor": ("tp", "tp+sp"),
    "data": ("dp", "fsdp optimizer", "fsdp gradients", "fsdp full"),
    "hybrid": ("HSDP",),
    "context": ("cp ring", "cp all_gather", "cp all_to_all"),
    "balance": ("zigzag", "no zigzag"),
    "pipeline": ("pp gpipe", "pp 1f1b", "pp interleaved", "pp zero-bubble"),
    "recompute": ("ckpt full", "ckpt selective", "ckpt auto"),
    "share": ("ckpt ratio",),
    "activations": ("activations to host", "activations to disk"),
    "state": ("state to host", "state to disk"),
    "precision": ("bf16",),
    "family": ("gpt2", "llama"),
    "head": ("tied", "untied"),
    "heads": ("grouped heads",),
    "targets": ("masked targets",),
    "documents": ("documents",),
    "parts": ("micro-batches",),
    "stages": ("uneven stages",),
}
FEATURES = [feature for features in KINDS.values() for feature in features]
STRATEGIES = FEATURES[:FEATURES.index("bf16")]
KIND = {feature: kind for kind, features in KINDS.items() for feature in features}

# Pairs that mean nothing, and why.
IMPOSSIBLE = {
    ("dp", "HSDP"): "dp is data parallelism without fsdp, HSDP with it",
    ("ckpt auto", "ckpt ratio"): "mode = auto chooses the layers itself",
}


def strategy_features(settings, chain):
    def size(name):
        return int(settings.get(f"{name}.size", 1)) if name in chain else 0

    def option(key, default):
        return str(settings.get(key, default))

    if size("tp") > 1:
        yield "tp+sp" if option("tp.sequence_parallel", "off") == "on" else "tp"
    if size("fsdp") > 1:
        yield f"fsdp {option('fsdp.level', 'full')}"
    if size("dp") > 1:
        yield "HSDP" if size("fsdp") > 1 else "dp"
    if size("cp") > 1:
        method = option("cp.method", "ring")
        yield f"cp {method}"
        zigzag = option("cp.zigzag", "auto")
        yield "zigzag" if zigzag == "on" or zigzag == "auto" and method != "all_to_all" else "no zigzag"
    if size("pp") > 1:
        yield f"pp {option('pp.schedule', '1f1b')}"
        chunks = int(settings.get("pp.chunks", 2)) if option("pp.schedule", "1f1b") == "interleaved" else 1
        if "pp.layers" in settings or int(settings.get("gpt.layers", 2)) % (size("pp") * chunks):
            yield "uneven stages"


def memory_features(settings, chain):
    if "ckpt" in chain and settings.get("ckpt.mode") == "auto":
        yield "ckpt auto"
    elif "ckpt" in chain and float(settings.get("ckpt.ratio", 1)) > 0:
        yield f"ckpt {settings.get('ckpt.recompute', 'selective')}"
        if float(settings.get("ckpt.ratio", 1)) < 1:
            yield "ckpt ratio"
    if "offload" in chain:
        activations, state = settings.get("offload.activations", "host"), settings.get("offload.optimizer", "off")
        if activations != "off" and settings.get("offload.min_size") == 0:
            yield f"activations to {activations}"
        if state != "off":
            yield f"state to {state}"


def training_features(settings):
    family = settings["gpt.family"]
    yield family
    yield "tied" if settings.get("gpt.tied", "true" if family == "gpt2" else "false") == "true" else "untied"
    if int(settings.get("gpt.kv_heads", 8)) < int(settings.get("gpt.heads", 8)):
        yield "grouped heads"
    if "data.ignore" in settings:
        yield "masked targets"
    if settings.get("data.documents") == "separate":
        yield "documents"
    if int(settings.get("data.micro_batches", 1)) > 1:
        yield "micro-batches"
    if settings.get("precision.compute") == "bf16":
        yield "bf16"


def features(group, layout):
    """What this layout of this group combines."""
    settings = {**group.training, **layout.overrides}
    chain = settings["strategies.chain"].split(", ")
    return {*strategy_features(settings, chain), *memory_features(settings, chain), *training_features(settings)}


def must_have():
    """All pairs of features of two kinds but those that mean nothing, each in the order of FEATURES."""
    return [(a, b) for a, b in itertools.combinations(FEATURES, 2) if KIND[a] != KIND[b] and (a, b) not in IMPOSSIBLE]


def uncovered(groups):
    """Pairs that no layout has. bf16 says little of others, for its bounds are wide: those must be in fp32."""
    missing = set(must_have())
    for group in groups:
        for layout in group.layouts:
            present = [f for f in FEATURES if f in features(group, layout)]
            missing.difference_update(pair for pair in itertools.combinations(present, 2)
                                      if "bf16" not in present or "bf16" in pair)
    return sorted(missing)


def triples(groups):
    """How many triples of the strategies' features there are in fp32 or bf16 layouts, and how many there could be."""
    found = set()
    for group in groups:
        for layout in group.layouts:
            found.update(itertools.combinations([f for f in STRATEGIES if f in features(group, layout)], 3))
    possible = [t for t in itertools.combinations(STRATEGIES, 3)
                if len({KIND[f] for f in t}) == 3
                and not any(pair in IMPOSSIBLE for pair in itertools.combinations(t, 2))]
    return len(found.intersection(possible)), len(possible)


# What is refused: each with what `tenon check` says of it.

class Apart:
    def __init__(self, what, why, says, layout, **training):
        self.what, self.why, self.says, self.layout = what, why, says, layout
        self.training = {**LLAMA, **UNTIED, "gpt.layers": 4}
        self.training.update({key.replace("__", "."): value for key, value in training.items()})


def apart():
    return [
        Apart("cp before tp in the chain", "cp deals out the heads that tp has left", "cp must come after tp",
              Chain("cp, tp", cp=2, tp=2)),
        *(Apart(f"{other} before ckpt in the chain",
                f"{other} brings again, for the backward pass, what ckpt's copies use",
                rf"{other} must come after ckpt|ckpt must come before {other}", Chain(f"{other}, ckpt", **{other: 2}))
          for other in ("tp", "cp", "fsdp")),
        *(Apart(f"pp before {other} in the chain", "pp cuts the program that all others have made",
                rf"pp must come after {other}", Chain(f"pp, {other}", pp=2, **{other: 2})) for other in ("tp", "cp", "dp", "fsdp")),
        Apart("pp before ckpt in the chain", "pp cuts the program that all others have made",
              "pp must come after ckpt", Chain("pp, ckpt", pp=2)),
        *(Apart(f"offload before {other} in the chain", "offload moves what all others have left",
                rf"offload must come after {other}",
                Chain(f"offload, {other}", **{other: 2} if other != "ckpt" else {}))
          for other in ("tp", "cp", "dp", "fsdp", "pp", "ckpt")),
        Apart("cp by all_to_all beside tp, where their product does not divide heads and kv_heads",
              "each rank has whole heads; the ring takes any number",
              r"all_to_all deals kv_heads = 4 .* or method = ring",
              Chain("tp, cp", tp=2, cp=4, **EXCHANGE)),
        Apart("cp beside tp with sequence_parallel, where their product does not divide the sequence",
              "each rank has as many tokens", r"is cut by tp = 8 and cp = 4; a multiple of 32 would work",
              Chain("tp, cp", tp=8, cp=4, **SP), gpt__kv_heads=8),
        Apart("dp beside fsdp, where their product does not divide the sequences of a micro-batch",
              "each rank has as many sequences, or dp's shares",
              r"dimension 0 \(batch\) is 2, and must be a multiple of 4",
              Chain("fsdp, dp", 4, fsdp=2, dp=2)),
        Apart("pp with more stages than layers, interleaved with more stages of all ranks",
              "a stage has a layer at least",
              r"2 ranks with 3 stages each are 6 stages, for 4 layers",
              Chain("pp", 6, pp=2, pp__chunks=3, **INTERLEAVED), data__batch=12),
        Apart("pp's chunks with another schedule than interleaved", "only that one runs several stages a rank",
              "leave it out, or use schedule = interleaved", Chain("pp", 2, pp=2, pp__chunks=2)),
        Apart("ckpt's and offload's tags, where both name the same", "an activation is made again or moved, not both",
              r"\[offload\] tags: .* take norm out", Chain("ckpt, offload", ckpt__tags="norm", offload__tags="norm")),
        Apart("offload's keep and share", "both say how much moves", "give one of the two",
              Chain("offload", offload__keep="1M", offload__share=0.5)),
    ]


# The suites.

SP, SEPARATE = {"tp__sequence_parallel": "on"}, {"data.documents": "separate"}
GATHER, EXCHANGE = {"cp__method": "all_gather"}, {"cp__method": "all_to_all"}
ZIGZAG, PLAIN = {"cp__zigzag": "on"}, {"cp__zigzag": "off"}
GPIPE, INTERLEAVED, ZERO_BUBBLE = ({"pp__schedule": s} for s in ("gpipe", "interleaved", "zero-bubble"))
OPTIMIZER, GRADIENTS = {"fsdp__level": "optimizer"}, {"fsdp__level": "gradients"}
FULL, HALF = {"ckpt__recompute": "full"}, {"ckpt__ratio": 0.5}
AUTO = {"ckpt__mode": "auto"}


def away(activations, optimizer):
    return {"offload__min_size": 0, "offload__activations": activations, "offload__optimizer": optimizer}


def pairs_suite():
    """The pairs that the suites of single strategies do not have. What mode = auto may use lies halfway between what
    the layout needs without ckpt and with everything recomputed."""
    five = {"gpt.layers": 5}  # which two stages cannot share evenly
    llama = {**LLAMA, **UNTIED, **MASKED, **five}
    gpt2 = {**GPT2, **TIED, **MASKED, **SEPARATE, "gpt.kv_heads": 4, **five}
    large = {"gpt.mlp": 256, "data.batch": 16}
    return [
        Group("llama, untied, masked targets, five layers", llama, [
            Chain("ckpt, cp, dp, fsdp, offload", 2, fsdp=2, dp=2, cp=2, **GRADIENTS, **EXCHANGE, **ZIGZAG, **HALF,
                  **away("disk", "host")),
            Chain("ckpt, fsdp, cp, pp, offload", 2, fsdp=2, cp=2, pp=2, **EXCHANGE, **GPIPE, **FULL, **HALF,
                  **away("host", "disk")),
            Chain("ckpt, fsdp, cp, pp, offload", 2, fsdp=2, cp=2, pp=2, **OPTIMIZER, **GATHER, **PLAIN, **FULL, **HALF,
                  **away("disk", "disk")),
            Chain("ckpt, fsdp, cp, dp", 2, fsdp=2, dp=2, cp=2, **GRADIENTS, **PLAIN, **FULL, **HALF)]),
        Group("gpt2, tied, grouped heads, documents, five layers", gpt2, [
            Chain("ckpt, cp, dp, pp, offload", 2, dp=2, cp=2, pp=2, **GPIPE, **HALF, **away("disk", "disk")),
            Chain("ckpt, cp, fsdp, pp, offload", 2, fsdp=2, cp=2, pp=2, **GRADIENTS, **GATHER, **PLAIN, **INTERLEAVED,
                  **FULL, **HALF, **away("host", "host")),
            Chain("ckpt, dp, fsdp, pp, offload", 2, fsdp=2, dp=2, pp=2, **OPTIMIZER, **ZERO_BUBBLE, **HALF,
                  **away("host", "host")),
            Chain("ckpt, tp, cp, pp, offload", 2, tp=2, cp=2, pp=2, **SP, **GATHER, **PLAIN, **ZERO_BUBBLE, **HALF,
                  **away("disk", "disk")),
            Chain("tp, pp, offload", 2, tp=2, pp=2, **GPIPE, **away("disk", "disk")),
            Chain("ckpt, cp, pp, offload", 2, cp=2, pp=2, **EXCHANGE, **ZIGZAG, **ZERO_BUBBLE, **HALF,
                  **away("disk", "off")),
            Chain("dp, fsdp, cp, offload", 2, fsdp=2, dp=2, cp=2, **OPTIMIZER, **GATHER, **away("disk", "disk"))]),
        Group("llama, tied, documents", {**LLAMA, **TIED, **SEPARATE, "gpt.layers": 4}, [
            Chain("fsdp, tp, pp, offload", 2, tp=2, fsdp=2, pp=2, **SP, **OPTIMIZER, **GPIPE, **away("disk", "host"))]),
        Group("gpt2, untied, masked targets, bf16", {**GPT2, **UNTIED, **MASKED, **BF16, "gpt.layers": 4}, [
            Chain("ckpt, pp, offload", 2, pp=2, **GPIPE, **FULL, **HALF, **away("disk", "off")),
            Chain("ckpt, dp, fsdp, offload", 2, fsdp=2, dp=2, **OPTIMIZER, **away("disk", "off"))], precision="bf16"),
        Group("gpt2, tied, documents, auto", {**gpt2, **large}, [
            Chain("ckpt, cp, pp, offload", 2, cp=2, pp=2, **GATHER, **PLAIN, **GPIPE, **AUTO, **away("disk", "host"),
                  device__memory="1080K"),
            Chain("ckpt, dp, fsdp, pp, offload", fsdp=2, dp=2, pp=2, **GRADIENTS, **GPIPE, **AUTO,
                  **away("host", "disk"), device__memory="1050K")]),
        Group("llama, untied, masked targets, auto", {**llama, **large}, [
            Chain("ckpt, cp, pp, offload", 2, cp=2, pp=2, **EXCHANGE, **INTERLEAVED, **AUTO, **away("disk", "disk"),
                  device__memory="1450K"),
            Chain("ckpt, fsdp, tp, cp, offload", 2, tp=2, fsdp=2, cp=2, **SP, **OPTIMIZER, **AUTO,
                  **away("off", "host"), device__memory="1170K"),
            Chain("ckpt, dp, tp, pp", 2, tp=2, dp=2, pp=2, **ZERO_BUBBLE, **AUTO, device__memory="1730K"),
            Chain("ckpt, fsdp, dp, pp, offload", 2, fsdp=2, dp=2, pp=2, **GRADIENTS, **AUTO, **away("off", "disk"),
                  device__memory="1490K"),
            Chain("ckpt, fsdp, dp, pp, offload", fsdp=2, dp=2, pp=2, **INTERLEAVED, **AUTO, **away("off", "disk"),
                  device__memory="1270K")]),
        Group("llama, untied, bf16, auto", {**llama, **large, **BF16}, [
            Chain("ckpt, tp, dp", 2, tp=2, dp=2, **AUTO, device__memory="1760K")], precision="bf16"),
    ]


def large_suite():
    """Three strategies and more at once, up to 16 ranks."""
    batch = {"data.batch": 16, "gpt.layers": 5}
    llama, gpt2 = {**LLAMA, **UNTIED, **MASKED, **batch}, {**GPT2, **TIED, **SEPARATE, **batch}
    few_heads = {**QWEN, "gpt.kv_heads": 2, **TIED, **SEPARATE, **HARDLY_ANY, **batch}
    odd_sizes = {"gpt.hidden": 40, "gpt.heads": 4, "gpt.kv_heads": 2, "gpt.mlp": 72, "gpt.vocab": 61, "data.batch": 24}
    everything = Chain("ckpt, tp, cp, fsdp, pp, offload", 2, tp=2, cp=2, fsdp=2, pp=2, **SP, **HALF,
        **away("host", "host"))
    exchange = Chain("tp, cp, fsdp, pp", 2, tp=2, cp=2, fsdp=2, pp=2, **EXCHANGE, **GRADIENTS, **ZERO_BUBBLE)
    return [
        Group("llama, untied, masked targets, five layers", llama, [
            Chain("tp, cp, fsdp, pp", 2, tp=2, cp=2, fsdp=2, pp=2, **SP),
            Chain("tp, dp, pp", 4, tp=2, dp=2, pp=4, **ZERO_BUBBLE),
            Chain("ckpt, tp, cp, fsdp, dp, offload", 2, tp=2, cp=2, fsdp=2, dp=2, **SP, **FULL, **away("host", "host")),
            Chain("ckpt, cp, fsdp, pp", 2, cp=4, fsdp=2, pp=2, **INTERLEAVED),
            Chain("ckpt, tp, dp, pp, offload", 4, tp=4, dp=2, pp=2, **SP, **FULL, **HALF, **away("disk", "disk")),
            Chain("cp, fsdp, dp, pp", 2, cp=2, fsdp=2, dp=2, pp=2, **EXCHANGE, **GRADIENTS, **GPIPE)]),
        Group("gpt2, tied, documents, five layers", gpt2, [
            Chain("tp, cp, pp", 4, tp=2, cp=2, pp=4, **PLAIN),
            Chain("ckpt, tp, cp, fsdp, dp", tp=2, cp=2, fsdp=2, dp=2, **GATHER, **OPTIMIZER, **FULL),
            Chain("tp, cp, fsdp, pp, offload", 2, tp=2, cp=2, fsdp=2, pp=2, **SP, **EXCHANGE, **ZERO_BUBBLE,
                  **away("host", "disk")),
            Chain("ckpt, fsdp, dp, pp, offload", 2, fsdp=4, dp=2, pp=2, **INTERLEAVED, **HALF, **away("disk", "host")),
            Chain("ckpt, tp, cp, dp, pp, offload", 4, tp=2, cp=2, dp=2, pp=2, **SP, **GATHER, **GPIPE, **FULL,
                  **away("disk", "off"))]),
        Group("llama, fewer key heads than tp, biases, normed heads, tied, documents, hardly any target", few_heads, [
            Chain("tp, cp, fsdp", tp=4, cp=2, fsdp=2, **SP, **GRADIENTS),
            Chain("ckpt, tp, cp, pp", 2, tp=4, cp=2, pp=2, **GATHER, **ZERO_BUBBLE),
            Chain("ckpt, tp, dp, pp, offload", 2, tp=4, dp=2, pp=2, **SP, **INTERLEAVED, **FULL,
                  **away("host", "disk"))]),
        Group("llama, one key head, biases, normed heads",
              {**QWEN, **UNTIED, **MASKED, "gpt.kv_heads": 1, "data.batch": 24}, [
            Chain("ckpt, tp, fsdp", 4, tp=2, fsdp=2, **SP, **FULL)]),  # a micro-batch that only one of the two divides
        Group("llama, biases, tied", {**QWEN, **TIED, "data.batch": 24}, [
            # gradients of biases are whole before fsdp cuts them, in no equal parts
            Chain("cp, fsdp", 2, cp=4, fsdp=3, **EXCHANGE)]),
        Group("llama, grouped heads, odd sizes", {**llama, **odd_sizes}, [
            Chain("tp, fsdp, pp", 4, tp=2, fsdp=3, pp=2, **ZERO_BUBBLE),
            Chain("ckpt, tp, dp, pp", 2, tp=2, dp=2, pp=3, dp__shares="2, 1", pp__layers="1, 3, 1", **SP)]),
        Group("gpt2, dropout, 2 parts", {**gpt2, "gpt.dropout": 0.2}, [everything, exchange],
            reference={"data.micro_batches": 2}),
        Group("llama, validation and sample", {**llama, **PRINTED}, [everything]),
        Group("llama, SGD", {**llama, "optimizer.kind": "sgd", "optimizer.lr": 0.05}, [everything, exchange]),
        Group("gpt2, tied, documents, bf16", {**gpt2, **BF16}, [everything, exchange], precision="bf16"),
        Group("llama, untied, masked targets, bf16", {**llama, **BF16}, [
            everything, Chain("ckpt, cp, fsdp, dp, pp", 2, cp=2, fsdp=2, dp=2, pp=2, **GATHER, **OPTIMIZER,
                **INTERLEAVED)], precision="bf16"),
    ]


SUITES = {"pairs": pairs_suite, "large": large_suite}
