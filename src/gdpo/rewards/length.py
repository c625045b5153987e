r"""Defines rewards for the length of a completion in tokens.

There are a hard limit, a limit with a linear ramp (DAPO), and a target range. All use the trainer's
token count, with the end-of-sequence token if the model wrote one.

A short completion is easier to generate than a correct one. To give the length reward only for
correct answers (the paper's Eq. 8), add a gate in the recipe:

```yaml
rewards:
  - {name: correctness}
  - {name: token_limit, options: {limit: 4000}, gate: {on: correctness, at_least: 1}}
```

>>> import numpy as np
>>> from gdpo.rewards import Gate, apply_gates, score
>>> short = token_limit(4000)
>>> scores = score([short], ["a", "b", "c"], [{}] * 3, num_tokens=[3000, 5000, 3000])
>>> correctness, lengths = np.array([1.0, 1.0, 0.0]), scores.values[:, 0]
>>> rewards = np.stack([correctness, lengths], axis=-1)
>>> apply_gates(rewards, ["correctness", short.name], {short.name: Gate("correctness", at_least=1)})
array([[1., 1.],
       [1., 0.],
       [0., 0.]])
"""

from functools import partial

from gdpo.errors import ConfigError, check_whole
from gdpo.rewards.reward import Example, Reference, Reward


def token_limit(limit: int, *, name: str = "length") -> Reward:
    r"""Return a reward that is 1 for a completion of at most `limit` tokens, and 0 otherwise.

    $$ r = \mathbb{1}[n \le l] $$

    The paper's maths runs use it with $l = 4000$ and completions of up to 8000 tokens. Set the
    limit below the trainer's `max_completion_length`, or every completion gets 1.

    Args:
        limit: $l$, in tokens. Must be at least 1.
        name: Name of the reward.

    Raises:
        ConfigError: If the limit is not a positive integer.

    References:
        Liu et al. 2026, "GDPO", https://arxiv.org/abs/2601.05242, section 4.2 and Eq. 8.

    Examples:
        >>> token_limit(4000).function(4001, {})
        0.0
    """
    check_whole("token_limit: limit", limit, least=1)
    return Reward(
        name=name,
        function=partial(_in_range, shortest=0, longest=limit, width=1),
        low=0.0,
        high=1.0,
        examples=(Example(limit, {}, 1.0), Example(limit + 1, {}, 0.0)),
        of="tokens",
    )


def soft_overlong(maximum: int, buffer: int, *, name: str = "length") -> Reward:
    r"""Return a penalty that is 0 and falls to -1 over the last `buffer` tokens before `maximum`.

    $$ r = \begin{cases} 0 & n \le L - c \\ (L - c - n) / c & L - c < n \le L \\ -1 & n > L
    \end{cases} $$

    The values are those of TRL's `get_soft_overlong_punishment`.

    Do not gate this reward. The best value is 0, and a closed gate also gives 0, so a wrong
    completion would get the best value: gate `token_limit` or `token_range` instead.

    Args:
        maximum: $L$, in tokens. Must be at least 1. If $L$ equals the trainer's
            `max_completion_length`, the last branch is never reached.
        buffer: $c$, the length of the ramp below the maximum, in tokens. 0 means no ramp.
        name: Name of the reward.

    Raises:
        ConfigError: If a length is not an integer, or the buffer is longer than the maximum.

    References:
        Yu et al. 2025, "DAPO", https://arxiv.org/abs/2503.14476, Eq. 13.

    Examples:
        >>> soft_overlong(100, 20).function(90, {})
        -0.5
    """
    check_whole("soft_overlong: maximum", maximum, least=1)
    check_whole("soft_overlong: buffer", buffer, least=0)
    if buffer > maximum:
        raise ConfigError(
            f"soft_overlong: buffer must be at most maximum ({maximum}), got {buffer}. The penalty "
            "grows over this number of tokens below the maximum"
        )
    return Reward(
        name=name,
        function=partial(_overlong, free=maximum - buffer, buffer=buffer),
        low=-1.0,
        high=0.0,
        examples=(
            Example(maximum - buffer, {}, 0.0),
            Example(maximum, {}, -1.0 if buffer else 0.0),
            Example(maximum + 1, {}, -1.0),
        ),
        of="tokens",
    )


def token_range(low: int, high: int, *, width: int, name: str = "length") -> Reward:
    r"""Return a reward that is 1 within a range of lengths and falls to 0 on both sides.

    Let $d = \max(a - n,\, n - b,\, 0)$ be the distance of the length $n$ from the range, in tokens.
    Then

    $$ r = \max(0,\; w - d) / w. $$

    Use it where a completion can also be too short, such as a summary. If $w > a$, an empty
    completion gets more than 0.

    Args:
        low: $a$, the shortest length that gets 1, in tokens.
        high: $b$, the longest length that gets 1, in tokens.
        width: $w$, the distance from the range at which the reward is 0, in tokens. 1: no ramp.
        name: Name of the reward.

    Raises:
        ConfigError: If a length is not an integer, the range is empty, or the width is below 1.

    Examples:
        >>> reward = token_range(100, 200, width=50)
        >>> [reward.function(n, {}) for n in (75, 100, 200, 210, 250)]
        [0.5, 1.0, 1.0, 0.8, 0.0]
    """
    check_whole("token_range: low", low, least=0)
    check_whole("token_range: high", high, least=0)
    check_whole("token_range: width", width, least=1)
    if low > high:
        raise ConfigError(f"token_range: low must be at most high ({high}), got {low}")
    short = (Example(low - width, {}, 0.0),) if low >= width else ()
    return Reward(
        name=name,
        function=partial(_in_range, shortest=low, longest=high, width=width),
        low=0.0,
        high=1.0,
        examples=(
            Example(low, {}, 1.0),
            Example(high, {}, 1.0),
            Example(high + width, {}, 0.0),
            *short,
        ),
        of="tokens",
    )


# These functions are at module level so that a reward can be pickled for another process.


def _overlong(num_tokens: int, _reference: Reference, *, free: int, buffer: int) -> float:
    over = num_tokens - free
    if over <= 0:
        return 0.0
    return -1.0 if over >= buffer else -over / buffer


def _in_range(
    num_tokens: int, _reference: Reference, *, shortest: int, longest: int, width: int
) -> float:
    outside = max(shortest - num_tokens, num_tokens - longest, 0)
    return max(0, width - outside) / width
