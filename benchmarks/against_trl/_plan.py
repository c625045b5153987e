"""Calculates the tokens and TFLOP of an optimizer step with our plan and with TRL's, without a GPU.

128 rollouts in 16 micro-batches, all with signal. The lengths of the completions are the quantiles
of a log-normal distribution, shuffled with seed 0 (`log_normal`, as in `training`). The model has
the shape of Qwen2.5-1.5B: 28 layers of 1536, a body of 1.310 B parameters and a head of 0.233 B.
A pass forward and backward takes 6 FLOP per parameter and token, and 12 x layers x width for each
pair of a token and one that it attends to.
"""

from benchmarks.against_trl._policies import log_normal

from gdpo.integrations.trl._plan import RolloutTokens, calls_needed, dealt, pieces_of, split

BODY, HEAD, PAIR = 1.310e9, 0.233e9, 12 * 28 * 1536
ROLLOUTS, MICRO_BATCHES = 128, 16
SHAPES = {"512/300/8": (512, 300, 1024, 8), "600/100/4": (600, 100, 400, 4)}
"""Tokens of a prompt, mean and maximum of a completion, samples."""


def triangle(tokens):
    return tokens * (tokens + 1) // 2


def padded(rows, prompt, completion):
    """Return body tokens, head tokens and pairs of a padded micro-batch."""
    width = prompt + completion
    return rows * width, rows * completion, rows * triangle(width)


def flat(rows, places):
    """Return body tokens, head tokens and pairs of a call with flat rows."""
    prompts = {rows[i].group: rows[i].prompt for i in places}.values()
    completions = [rows[i].completion for i in places]
    pairs = sum(map(triangle, prompts))
    pairs += sum(rows[i].completion * rows[i].prompt + triangle(rows[i].completion) for i in places)
    return sum(prompts) + sum(completions), sum(completions), pairs


def calls_of(prompt, mean, longest, samples):
    """Return the calls of each way: body tokens, head tokens and pairs."""
    rows = [
        RolloutTokens(prompt, length, length, group=i // samples)
        for i, length in enumerate(log_normal(mean, longest, ROLLOUTS))
    ]
    size = ROLLOUTS // MICRO_BATCHES
    packed = split(rows, ROLLOUTS, MICRO_BATCHES)
    budget = size * (prompt + longest)
    pieces = pieces_of(rows, budget)
    planned = dealt(pieces, calls_needed(pieces, MICRO_BATCHES, budget))
    return {
        "TRL": [padded(size, prompt, longest)] * MICRO_BATCHES,
        "packed, each rollout with its prompt": [
            padded(len(here), prompt, max(rows[i].completion for i in here)) for here in packed
        ],
        "packed, each prompt once": [flat(rows, places) for _, places in planned],
    }


def show():
    print(
        "| shape | way | calls | body tokens | head tokens | TFLOP | TRL / it |\n"
        + "|---" * 7
        + "|"
    )
    for name, shape in SHAPES.items():
        theirs = None
        for way, calls in calls_of(*shape).items():
            body, head, pairs = (sum(each) for each in zip(*calls, strict=True))
            flops = (6 * (BODY * body + HEAD * head) + PAIR * pairs) / 1e12
            theirs = theirs or flops
            counts = f"{len(calls)} | {body:,} | {head:,} | {flops:,.0f} | {theirs / flops:.1f}"
            print(f"| {name} | {way} | {counts} |")
