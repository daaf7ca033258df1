#!/usr/bin/env python3
"""Write tests/golden/int8/NAME.json: products in 8 bits by the rule of docs/math/eight-bit.md.

usage: make_int8_goldens.py [OUT]

numpy, and fractions for what is rounded once. Floats are the bits of float32 as numbers (any NaN: 0x7fc00000),
matrices row by row; `packed` has two codes of NF4 a byte, the first in the upper half, in blocks of 64 along the
flattened weight. Given: x (m, k), dy (m, n), packed, absmax. Expected: the codes of W, sw (n), excess as
[row, column, bits]; codes, scales and spikes of x, and y; the same of dy * sw, and dx.
"""
import json
import os
import sys
from fractions import Fraction

import numpy as np

F = np.float32
GROUP = 128
TINY = F(2.0 ** -100)
NAN = 0x7fc00000
NF4 = np.array([-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
                -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
                0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
                0.7229568362236023, 1.0], F)


def rounded(value):
    """The float32 nearest to a fraction, ties to even, subnormals included."""
    if value == 0:
        return F(0)
    a = abs(value)
    e = max(a.numerator.bit_length() - a.denominator.bit_length() - 24, -149)
    while a >= Fraction(2) ** (e + 24):
        e += 1
    while a < Fraction(2) ** (e + 23) and e > -149:
        e -= 1
    s = a / Fraction(2) ** e
    n, rest = s.numerator // s.denominator, s - s.numerator // s.denominator
    n += rest > Fraction(1, 2) or (rest == Fraction(1, 2) and n % 2 == 1)
    return F((-1 if value < 0 else 1) * float(n) * 2.0 ** e)


def fma(a, b, c):
    if np.isfinite(a) and np.isfinite(b) and np.isfinite(c):
        return rounded(Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c)))
    return F(c) if a == 0 and np.isfinite(b) else F(np.nan)


def coded(row):
    """[(codes, scale)] of each group of a row, and its spikes."""
    out, spikes = [], []
    for at in range(0, len(row), GROUP):
        v = row[at:at + GROUP].copy()
        n = len(v)
        for again in (False, True):
            largest = int((v.view(np.uint32) & 0x7fffffff).max())
            a = np.array([largest], np.uint32).view(F)[0]
            q, s = np.zeros(n, int), F(0)
            if largest >= 0x7f800000:
                s = F(np.nan)
                break
            if a < TINY:
                break
            s = a / F(127)
            q = np.rint(v * (F(127) / a)).astype(int)
            far = np.abs(q) >= 32
            count = int(far.sum())
            if again or count > 8 or int((q * q)[~far].sum()) >= 8 * (n - count):
                break
            spikes += (at + np.nonzero(far)[0]).tolist()
            v[far] = 0
        out.append((q, s))
    return out, spikes


def coded_weight(packed, absmax, n, k):
    """Codes (n, k), scales (n), excess [(row, column, e)], values (n, k)."""
    index = np.stack([packed >> 4, packed & 15], 1).ravel()[:n * k]
    block = np.arange(n * k) // 64
    codes, scales, excess = np.zeros((n, k), int), np.zeros(n, F), []
    values = NF4[index].reshape(n, k) * absmax[block].reshape(n, k)
    for r in range(n):
        a = np.abs(absmax[block[r * k]:block[r * k + k - 1] + 1])
        limit = 8 * float(sum(float(v) for v in a)) / len(a)
        top = max([v for v in a if float(v) <= limit], default=F(0))
        if top < TINY:
            top = max(a)
        if top < TINY:
            continue
        inverse, scales[r] = F(127) / top, top / F(127)
        for j in range(k):
            i = r * k + j
            code = int(np.rint(NF4[index[i]] * (absmax[block[i]] * inverse)))
            codes[r, j] = max(-127, min(127, code))
            if code != codes[r, j]:
                excess.append((r, j, fma(F(-codes[r, j]), scales[r], values[r, j])))
    return codes, scales, excess, values


def sum_of_groups(groups, codes):
    total = F(0)
    for g, (q, s) in enumerate(groups):
        total = fma(F(int((q * codes[g * GROUP:g * GROUP + len(q)]).sum())), s, total)
    return total


def case(name, m, n, k, rng, edit):
    x, dy = rng.normal(size=(m, k)).astype(F), rng.normal(size=(m, n)).astype(F)
    index = np.clip(np.rint(7.5 + 3.2 * rng.normal(size=n * k)), 0, 15).astype(np.uint8)
    index = np.concatenate([index, np.full(-n * k % 64, 7, np.uint8)])
    absmax = (0.04 + 0.03 * rng.random(len(index) // 64)).astype(F)
    edit(x, dy, index, absmax, rng)
    packed = (index[0::2] << 4 | index[1::2]).astype(np.uint8)
    with np.errstate(all="ignore"):
        c, sw, excess, values = coded_weight(packed, absmax, n, k)
        of_x = [coded(row) for row in x]
        of_dy = [coded(row) for row in dy * sw]
        y = np.array([[sum_of_groups(g, c[j]) * sw[j] for j in range(n)] for g, _ in of_x], F)
        dx = np.array([[sum_of_groups(g, c[:, j]) for j in range(k)] for g, _ in of_dy], F)
        for i in range(m):
            for t in of_x[i][1]:
                y[i] = [fma(x[i, t], w, v) for w, v in zip(values[:, t], y[i])]
            for t in of_dy[i][1]:
                dx[i] = [fma(dy[i, t], w, v) for w, v in zip(values[t], dx[i])]
            for r, j, e in excess:
                if j not in of_x[i][1]:
                    y[i, r] = fma(x[i, j], e, y[i, r])
                if r not in of_dy[i][1]:
                    dx[i, j] = fma(dy[i, r], e, dx[i, j])

    def bits(a):
        a = np.ascontiguousarray(a, F).ravel()
        return [NAN if np.isnan(v) else int(b) for v, b in zip(a, a.view(np.uint32))]

    def of(rows):
        return ([[g[0].tolist() for g in groups] for groups, _ in rows],
                [bits(np.array([g[1] for g in groups], F)) for groups, _ in rows], [t for _, t in rows])

    (x_q, x_s, x_spikes), (dy_q, dy_s, dy_spikes) = of(of_x), of(of_dy)
    return {"case": name, "m": m, "n": n, "k": k, "group": GROUP, "x": bits(x), "dy": bits(dy),
            "packed": packed.tolist(), "absmax": bits(absmax), "codes": c.ravel().tolist(), "sw": bits(sw),
            "excess": [[r, j, bits(e)[0]] for r, j, e in excess], "x_q": x_q, "x_s": x_s, "x_spikes": x_spikes,
            "y": bits(y), "dy_q": dy_q, "dy_s": dy_s, "dy_spikes": dy_spikes, "dx": bits(dx)}


def plain(x, dy, index, absmax, rng):
    pass


def outlier(x, dy, index, absmax, rng):
    """A channel that holds its group, one row with two, one without; one of dy."""
    x[:, 5] *= 1000
    x[1, 200], x[1, 9], x[2, 5], dy[0, 2] = -3000, 2500, 30, 4000


def edges(x, dy, index, absmax, rng):
    """Zeros, values below 2^-100 and about it, the largest ones; blocks of zeros."""
    x[0], x[2], dy[1] = 0, 0, 0
    x[1] *= F(2.0 ** -130)
    x[2, 3] = F(2.0 ** -99)
    x[3] = F(3e38) * np.sign(x[3])
    dy[2] *= F(1e-38)
    k = x.shape[1]
    index[:k] = 7
    absmax[k // 64 + 1], absmax[-1] = 0, F(1e-39)


def ties(x, dy, index, absmax, rng):
    """Codes half way between two whole numbers."""
    x[:] = rng.integers(-127, 128, x.shape).astype(F) / 2
    x[:, 0] = x[:, 128 % x.shape[1]] = 127
    dy[:] = rng.integers(-3, 4, dy.shape)
    absmax[:] = F(0.5)


def heavy(x, dy, index, absmax, rng):
    """Two weights far above the others of their row, one beside a spike of x and of dy; NaN and Inf."""
    k = x.shape[1]
    block = 2 * (k // 64) + 1
    first = 64 * block
    absmax[block], index[first:first + 64] = F(7.5), 7
    index[first + 9], index[first + 30] = 15, 1
    x[1, 3], x[2, 140], x[0, first % k + 9] = np.inf, np.nan, 4000
    dy[3, 1], dy[1, 2] = np.nan, -900


CASES = {"plain": (3, 7, 192, plain), "outlier": (4, 20, 256, outlier), "edges": (5, 6, 128, edges),
         "ties": (3, 5, 160, ties), "heavy": (4, 5, 640, heavy)}

if __name__ == "__main__":
    here = os.path.dirname(os.path.abspath(__file__))
    out = sys.argv[1] if len(sys.argv) > 1 else os.path.join(here, "../tests/golden/int8")
    os.makedirs(out, exist_ok=True)
    for i, (name, (m, n, k, edit)) in enumerate(CASES.items()):
        golden = case(name, m, n, k, np.random.default_rng([8, i]), edit)
        with open(os.path.join(out, name + ".json"), "w") as file:
            json.dump(golden, file, separators=(",", ":"))
            file.write("\n")
