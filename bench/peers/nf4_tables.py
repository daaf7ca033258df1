"""The tables of 4-bit weights with doubly quantized scales, as plain numbers."""

# The quantiles of a normal distribution that NF4 codes (Dettmers et al., arXiv:2305.14314).
NF4 = [-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
       -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
       0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
       0.7229568362236023, 1.0]
BLOCK = 64  # values with one scale
NESTED_BLOCK = 256  # scales with one scale


def signed_map():
    """The 256 values of 8-bit scales: 0, seven decades of 1, 2 ... 64 values of each sign, and 1."""
    positive = []
    for decade in range(7):
        count = 2 ** decade
        points = [0.1 + 0.9 * k / count for k in range(count + 1)]
        positive += [(a + b) / 2 * 10.0 ** (decade - 6) for a, b in zip(points, points[1:])]
    return sorted([-x for x in positive] + [0.0] + positive + [1.0])


def midpoints(table):
    return [(a + b) / 2 for a, b in zip(table, table[1:])]
