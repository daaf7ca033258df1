#!/usr/bin/env python3
"""Write tests/golden/recurrent.json: what ops of layers with a state compute, in float64 numpy.

usage: make_recurrent_goldens.py [OUT]

The delta rule (arXiv:2412.06464) is computed by chunks, where its definition in C++ goes token by token.
With G the sums of g in a chunk, D_ij = exp(G_i - G_j) for i >= j, A_ij = beta_i (k_i . k_j) D_ij for j < i,

    R = (I + A)^-1 beta (v - e^G k S);  o = e^G q S + ((q k^T) * D) R;  S' = e^G_C S + (e^(G_C - G) k)^T R

Gradients are central differences of the products of results with random numbers, by steps of 1e-3 and
extrapolated three times: they are exact to about 1e-11, and no formula of a gradient is used.
"""
import json
import os
import sys

import numpy as np


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def causal_conv(x, weight, bias, lengths):
    """x (N, C), weight (C, K), bias (1, C)."""
    out, taps = [], weight.shape[1]
    for part in np.split(x, np.cumsum(lengths)[:-1]):
        rows = np.concatenate([np.zeros((taps - 1, x.shape[1])), part])
        out.append(bias + sum(weight[:, i] * rows[i:i + len(part)] for i in range(taps)))
    return np.concatenate(out)


def delta_chunk(q, k, v, g, beta, state):
    total = np.cumsum(g)
    lower = np.tril(np.ones((len(q), len(q)), bool))
    decay = np.where(lower, np.exp(np.where(lower, total[:, None] - total[None], 0)), 0)
    system = np.eye(len(q)) + np.tril(beta[:, None] * (k @ k.T) * decay, -1)
    added = np.linalg.solve(system, beta[:, None] * (v - np.exp(total)[:, None] * (k @ state)))
    o = np.exp(total)[:, None] * (q @ state) + ((q @ k.T) * decay) @ added
    return o, np.exp(total[-1]) * state + (np.exp(total[-1] - total)[:, None] * k).T @ added


def gated_delta_rule(shape, lengths, q, k, v, a, b, rate, dt_bias, state=None, chunk=4):
    """q, k (N, G K), v (N, H V), a, b (N, H), rate, dt_bias (1, H); state (H K, V), with one sequence."""
    heads, key_heads, dk, dv = shape
    norm = lambda x: x / np.sqrt(np.sum(x * x, -1, keepdims=True) + 1e-6)
    q = norm(q.reshape(-1, key_heads, dk)) * dk**-0.5
    k = norm(k.reshape(-1, key_heads, dk))
    g, beta = rate * np.logaddexp(0, a + dt_bias), sigmoid(b)
    o, after = np.empty((len(v), heads, dv)), []
    for h in range(heads):
        key, begin = h // (heads // key_heads), 0
        for length in lengths:
            s = np.zeros((dk, dv)) if state is None else state[h * dk:(h + 1) * dk]
            for first in range(begin, begin + length, chunk):
                t = slice(first, min(first + chunk, begin + length))
                o[t, h], s = delta_chunk(q[t, key], k[t, key], v[t, h * dv:(h + 1) * dv], g[t, h], beta[t, h], s)
            begin += length
        after.append(s)
    return o.reshape(len(v), -1), np.concatenate(after)


def gated_norm(o, z, weight, epsilon):
    return o / np.sqrt(np.mean(o * o, -1, keepdims=True) + epsilon) * weight * z * sigmoid(z)


def derivative(f):
    """f'(0), Richardson extrapolation of central differences."""
    table = [(f(h) - f(-h)) / (2 * h) for h in (8e-3, 4e-3, 2e-3, 1e-3)]
    for order in (4, 16, 64):
        table = [(order * b - a) / (order - 1) for a, b in zip(table, table[1:])]
    return table[0]


def with_gradients(random, names, inputs, run):
    """inputs, y = run(**inputs), a random dy, and the gradients of sum(y dy) by the named inputs."""
    y = run(**inputs)
    dy = random.standard_normal(y.shape)
    out = {**inputs, "y": y, "dy": dy}
    for name in names:
        gradient = np.empty_like(inputs[name])
        for place in np.ndindex(gradient.shape):
            step = np.zeros_like(gradient)
            step[place] = 1
            gradient[place] = derivative(lambda h: np.sum(dy * run(**{**inputs, name: inputs[name] + h * step})))
        out["d_" + name] = gradient
    return {name: x.tolist() for name, x in out.items()}


def goldens():
    random = np.random.RandomState(6)
    lengths, shape = [5, 1, 9], (4, 2, 3, 2)  # heads, key heads, K, V
    rows, heads = sum(lengths), shape[0]
    normal = lambda *size: random.standard_normal(size)
    # Keys are not short, so that a step of a difference does not turn them far.
    q, k = (x + 2 * np.sign(x) for x in (normal(rows, 6), normal(rows, 6)))
    inputs = {"q": q, "k": k, "v": normal(rows, 8), "a": normal(rows, heads), "b": normal(rows, heads),
              "rate": -np.array([[0.01, 0.4, 2, 9]]), "dt_bias": normal(1, heads)}
    state = normal(heads * shape[2], shape[3])
    o, after = gated_delta_rule(shape, [rows], **inputs, state=state)
    conv = {"x": normal(rows, 3), "weight": normal(3, 4), "bias": normal(1, 3)}
    block = {"b": normal(rows, 3), "c": normal(rows, 3), "x": normal(rows, 3), "weight": normal(3, 3),
             "bias": normal(1, 3)}
    silu = lambda x: x * sigmoid(x)
    return {
        "lengths": lengths, "shape": shape, "epsilon": 1e-3,
        "delta_rule": with_gradients(random, "qkvab", inputs, lambda **x: gated_delta_rule(shape, lengths, **x)[0]),
        "delta_rule_from_state": {"state": state.tolist(), "y": o.tolist(), "after": after.tolist()},
        "conv": with_gradients(random, "x", conv, lambda **x: silu(causal_conv(lengths=lengths, **x))),
        "gated_norm": with_gradients(random, "oz", {"o": normal(4, 6), "z": normal(4, 6), "weight": normal(1, 6)},
                                     lambda **x: gated_norm(epsilon=1e-3, **x)),
        "short_block": with_gradients(random, "bcx", block,
                                      lambda b, c, x, **w: c * causal_conv(b * x, lengths=lengths, **w)),
    }


def main():
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    path = sys.argv[1] if len(sys.argv) > 1 else os.path.join(root, "tests", "golden", "recurrent.json")
    with open(path, "w") as file:
        lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in goldens().items()]
        file.write("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
