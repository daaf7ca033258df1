"""Training of a LoRA adapter in plain torch, step by step, as a reference for the C++ trainer."""

import math

import torch

from torch_decoder import forward, loss_sum


def gradients(spec, weights, adapter, scale, sequences):
    """sequences: list of (ids, labels). Returns (logits [sum T, V], loss, targets, gradients).

    loss = sum of token losses / number of targets over all sequences; gradients: {module: (of A, of
    B)} of that loss.
    """
    leaves = {m: tuple(t.detach().requires_grad_() for t in pair) for m, pair in adapter.items()}
    logits, total, count = [], 0.0, 0
    for ids, labels in sequences:
        rows = forward(spec, weights, ids, leaves, scale)
        value, targets = loss_sum(rows, labels)
        logits.append(rows.detach())
        total, count = total + value, count + targets
    loss = total / count
    loss.backward()
    return (torch.cat(logits), loss.item(), count,
            {m: (a.grad, b.grad) for m, (a, b) in leaves.items()})


def linear_with_warmup(step, warmup, total):
    """Factor on the learning rate at step, counted from 0."""
    return step / warmup if step < warmup else max(0.0, (total - step) / (total - warmup))


def train(spec, weights, adapter, scale, lines, recipe):
    """Trains a copy of adapter; lines in order, from the front again when they are used up.

    Returns (trained adapter, log). recipe holds Hugging Face's argument names; the batches of an
    accumulation window make one sum, so only the number of lines in the window matters. A log entry
    holds what belongs to one optimizer step: its number from 1, the loss and the gradient norm
    (before clipping) at the parameters before the update, the learning rate of the update, and the
    number of targets.
    """
    adapter = {m: tuple(t.clone() for t in pair) for m, pair in adapter.items()}
    parameters = [t for pair in adapter.values() for t in pair]
    optimizer = torch.optim.AdamW(parameters, lr=0.0, eps=recipe["adam_epsilon"],
                                  betas=(recipe["adam_beta1"], recipe["adam_beta2"]),
                                  weight_decay=recipe["weight_decay"])
    size = recipe["per_device_train_batch_size"] * recipe["gradient_accumulation_steps"]
    log = []
    for step in range(recipe["max_steps"]):
        window = [lines[(step * size + k) % len(lines)] for k in range(size)]
        _, loss, tokens, grads = gradients(spec, weights, adapter, scale, window)
        flat = [g for pair in grads.values() for g in pair]
        norm = math.sqrt(sum(float((g.double()**2).sum()) for g in flat))
        clip = min(1.0, recipe["max_grad_norm"] / (norm + 1e-6))
        for parameter, gradient in zip(parameters, flat):
            parameter.grad = gradient * clip
        rate = recipe["learning_rate"] * linear_with_warmup(step, recipe["warmup_steps"],
                                                            recipe["max_steps"])
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
        log.append({"step": step + 1, "loss": loss, "grad_norm": norm, "learning_rate": rate,
                    "tokens": tokens})
    return adapter, log
