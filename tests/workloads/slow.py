"""The workloads' formulas once more, number by number in plain Python, slow and obvious. Inputs are nested lists."""

from __future__ import annotations

import math

Vector = list[float]
Matrix = list[Vector]


def dot(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True))


def linear(x: Vector, weight: Matrix, bias: Vector | None = None) -> Vector:
    return [dot(row, x) + (bias[i] if bias else 0.0) for i, row in enumerate(weight)]


def softmax(x: Vector) -> Vector:
    top = max(x)
    exponentials = [math.exp(value - top) for value in x]
    return [value / sum(exponentials) for value in exponentials]


def gelu(x: Vector) -> Vector:
    return [value * (1 + math.erf(value / math.sqrt(2))) / 2 for value in x]


def layer_norm(x: Vector, weight: Vector, bias: Vector, epsilon: float) -> Vector:
    mean = sum(x) / len(x)
    variance = sum((value - mean) ** 2 for value in x) / len(x)
    return [(value - mean) / math.sqrt(variance + epsilon) * w + b for value, w, b in zip(x, weight, bias, strict=True)]


def rms_norm(x: Vector, weight: Vector, epsilon: float) -> Vector:
    scale = math.sqrt(sum(value * value for value in x) / len(x) + epsilon)
    return [value / scale * w for value, w in zip(x, weight, strict=True)]


def swiglu(x: Vector, w1: Matrix, w2: Matrix, w3: Matrix) -> Vector:
    gate, up = linear(x, w1), linear(x, w3)
    return linear([g / (1 + math.exp(-g)) * u for g, u in zip(gate, up, strict=True)], w2)


def rotated(x: Vector, position: int, theta: float) -> Vector:
    """Pairs (x₂ᵢ, x₂ᵢ₊₁) turned by position · θ^(−2i/d); first all first halves of the pairs, then all second."""
    firsts, seconds = [], []
    for i in range(len(x) // 2):
        angle = position * theta ** (-2 * i / len(x))
        a, b = x[2 * i], x[2 * i + 1]
        firsts.append(math.cos(angle) * a - math.sin(angle) * b)
        seconds.append(math.sin(angle) * a + math.cos(angle) * b)
    return firsts + seconds


def causal_attention(q: Matrix, k: Matrix, v: Matrix) -> Matrix:
    """One head."""
    out = []
    for i, query in enumerate(q):
        weights = softmax([dot(query, k[j]) / math.sqrt(len(query)) for j in range(i + 1)])
        out.append([sum(w * v[j][c] for j, w in enumerate(weights)) for c in range(len(v[0]))])
    return out


def adamw(p, gradients, lr, betas, eps, decay):
    """The value of one parameter after steps with these gradients."""
    m = v = 0.0
    for t, g in enumerate(gradients, start=1):
        p -= lr * decay * p
        m = betas[0] * m + (1 - betas[0]) * g
        v = betas[1] * v + (1 - betas[1]) * g * g
        p -= lr * math.sqrt(1 - betas[1] ** t) / (1 - betas[0] ** t) * m / (math.sqrt(v) + eps)
    return p


def class_scores(attention) -> Vector:
    """What the class token attends to, for each patch token: the mean over heads."""
    heads = len(attention)
    return [sum(head[0][token] for head in attention) / heads for token in range(1, len(attention[0][0]))]


def topk(tokens: Matrix, attention, kept: int) -> Matrix:
    scores = class_scores(attention)
    best = sorted(range(len(scores)), key=lambda patch: -scores[patch])[:kept]
    return [tokens[0], *(tokens[1 + patch] for patch in best)]


def evit(tokens: Matrix, attention, kept: int) -> Matrix:
    scores = class_scores(attention)
    ranking = sorted(range(len(scores)), key=lambda patch: -scores[patch])
    fused = [0.0] * len(tokens[0])
    for patch in ranking[kept:]:
        for c, value in enumerate(tokens[1 + patch]):
            fused[c] += scores[patch] * value
    return [*topk(tokens, attention, kept), fused]


def tome(tokens: Matrix, sizes: Vector, keys, merged: int) -> tuple[Matrix, Vector]:
    """Keys as [head][token]. The tokens that are left with their sizes."""
    count = len(tokens)
    metric = []
    for token in range(count):
        mean = [sum(head[token][c] for head in keys) / len(keys) for c in range(len(keys[0][0]))]
        length = math.sqrt(dot(mean, mean))
        metric.append([value / length for value in mean])
    a, b = list(range(0, count, 2)), list(range(1, count, 2))
    proposals = []
    for place in a[1:]:  # not the class token
        similarity = [dot(metric[place], metric[other]) for other in b]
        proposals.append((max(similarity), place, b[similarity.index(max(similarity))]))
    accepted = sorted(proposals, key=lambda proposal: -proposal[0])[: min(merged, (count - 1) // 2)]
    gone = {place for _, place, _ in accepted}
    groups = [[place] for place in a if place not in gone]
    groups += [[other, *(place for _, place, into in accepted if into == other)] for other in b]
    new_sizes = [sum(sizes[place] for place in group) for group in groups]
    new_tokens = [
        [sum(sizes[place] * tokens[place][c] for place in group) / size for c in range(len(tokens[0]))]
        for group, size in zip(groups, new_sizes, strict=True)
    ]
    return new_tokens, new_sizes


def ats(attention, values, points: int) -> list[int]:
    """Values as [head][token]. The tokens whose rows go on, the class token first, in rising order."""
    count = len(attention[0][0])
    significance = [
        sum(head[0][token] * math.sqrt(dot(v[token], v[token])) for head, v in zip(attention, values, strict=True))
        for token in range(1, count)
    ]
    total, cumulated, so_far = sum(significance), [], 0.0
    for value in significance:
        so_far += value / total
        cumulated.append(so_far)
    taken = set()
    for i in range(points):
        place = (2 * i + 1) / (2 * points)
        distances = [abs(place - value) for value in cumulated]
        taken.add(1 + distances.index(min(distances)))
    return [0, *sorted(taken)]
