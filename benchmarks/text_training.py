"""Steps a second of training on a text, beside a bare loop of the same products and softmaxes, in one run.

The text is that of Python's documentation, with 500 tokens; width 64, contexts of 64 tokens, minibatches of 64. The
bare loop has its minibatches ready, uses PyTorch's forward and backward passes of the same expression, and takes the
same step; it counts nothing, draws nothing, keeps nothing. Wanted is at least 0.7 of its steps a second.
The two take turns, five times each; what counts is the median of the five ratios.
"""

import time

import numpy as np
import torch
from attention_phases.focus_dilution import Corpus, Parameters, load_corpus, train_transformer

WANTED, N_TOKENS, WIDTH, CONTEXT, BATCH, STEPS, TURNS = 0.7, 500, 64, 64, 64, 1000, 5


def bare(corpus: Corpus, start: Parameters, positions: str, steps: int) -> float:
    """Seconds of a bare loop."""
    W0, W1, WQ, WK = weights = [torch.tensor(part, requires_grad=True) for part in start.arrays]
    windows = torch.from_numpy(corpus.sample(BATCH, CONTEXT + 1, 0))
    counts = torch.zeros(BATCH, corpus.n_tokens, dtype=torch.float64)
    counts.scatter_add_(1, windows[:, :-1], torch.ones(BATCH, CONTEXT, dtype=torch.float64))
    log_counts, last, following = counts.log(), windows[:, -2], windows[:, -1]
    mask = torch.full((CONTEXT, CONTEXT), -torch.inf, dtype=torch.float64).triu(1)
    begin = time.perf_counter()
    for _ in range(steps):
        if positions == "last":
            attention = torch.softmax((W0[last] @ WQ) @ (W0 @ WK).T + log_counts, dim=1)
            loss = torch.nn.functional.cross_entropy(attention @ W0 @ W1, following)
        else:
            embedded = W0[windows[:, :-1]]
            attention = torch.softmax((embedded @ WQ) @ (embedded @ WK).mT + mask, dim=2)
            logits = attention @ embedded @ W1
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())
        gradient = torch.autograd.grad(loss, weights)
        with torch.no_grad():
            for part, slope in zip(weights, gradient, strict=True):
                part -= 0.01 * slope
    return time.perf_counter() - begin


def ours(corpus: Corpus, start: Parameters, positions: str, steps: int) -> float:
    """Seconds that `train_transformer` takes longer for these steps than for a single one."""
    seconds = []
    for n_steps in (1, steps + 1):
        begin = time.perf_counter()
        train_transformer(
            corpus,
            start=start,
            n_steps=n_steps,
            context=CONTEXT,
            batch=BATCH,
            learning_rate=0.01,
            positions=positions,
            n_frames=2,
            queries=[0],
        )
        seconds.append(time.perf_counter() - begin)
    return seconds[1] - seconds[0]


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    corpus = load_corpus("python-docs", n_tokens=N_TOKENS)
    start = Parameters.gaussian(corpus.n_tokens, WIDTH, 0.05, 0)
    assert corpus.chain.n_tokens == N_TOKENS  # made before the clock runs
    print(f"{N_TOKENS} tokens, width {WIDTH}, contexts of {CONTEXT}, minibatches of {BATCH}, one thread")
    print(f"{'predicts':>10} {'bare, steps/s':>15} {'ours, steps/s':>15} {'wanted':>8} {'got':>6}")
    for positions, steps in (("last", STEPS), ("all", STEPS // 20)):
        pairs = np.array(
            [(bare(corpus, start, positions, steps), ours(corpus, start, positions, steps)) for _ in range(TURNS)]
        )
        rates = steps / np.median(pairs, axis=0)
        ratio = float(np.median(pairs[:, 0] / pairs[:, 1]))
        print(f"{positions:>10} {rates[0]:15.0f} {rates[1]:15.0f} {WANTED:8.2f} {ratio:6.2f}", flush=True)


if __name__ == "__main__":
    main()
