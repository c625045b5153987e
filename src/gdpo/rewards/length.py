r"""Rewards of how long a completion is, in tokens.

They judge the number of tokens as the trainer counts them, the end-of-sequence token included where
the model wrote one; never words or characters. Three shapes: a limit, a limit with a ramp before it
(DAPO), and a range that is aimed at.

A short completion is easy to write, a right one is not. Whether the length counts only where the
answer is right is said by a gate (the paper's Eq. 8), not by the reward:

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

from gdpo.errors import ConfigError
from gdpo.rewards.reward import Example, Reference, Reward


def token_limit(limit: int, *, name: str = "length") -> Reward:
    r"""1 for a completion of at most so many tokens, else 0.

    $$ r = \mathbb{1}[n \le l] $$

    The length reward of the paper's maths runs ($l = 4000$, completions of up to 8000 tokens).
    A limit that generation never exceeds tells nothing: keep it below the trainer's
    `max_completion_length`.

    Args:
        limit: $l$, in tokens, 1 or more.
        name: What logs, recipes and files call the reward.

    Returns:
        A reward in {0, 1}.

    Raises:
        ConfigError: The limit is no whole number above 0.

    References:
        Liu et al. 2026, "GDPO", https://arxiv.org/abs/2601.05242, section 4.2 and Eq. 8.

    Examples:
        >>> token_limit(4000).function(4001, {})
        0.0
    """
    _check_tokens("token_limit", "limit", limit, at_least=1)
    return Reward(
        name=name,
        function=partial(_within, limit=limit),
        low=0.0,
        high=1.0,
        examples=(Example(limit, {}, 1.0), Example(limit + 1, {}, 0.0)),
        of="tokens",
    )


def soft_overlong(maximum: int, buffer: int, *, name: str = "length") -> Reward:
    r"""A punishment that sets in before the maximum length: 0, falling to -1.

    $$ r = \begin{cases} 0 & n \le L - c \\ (L - c - n) / c & L - c < n \le L \\ -1 & n > L
    \end{cases} $$

    The same numbers as TRL's `get_soft_overlong_punishment`.

    Its best value is 0, and 0 is what a closed gate gives: gated on correctness, a wrong completion
    gets the best length there is. Leave it ungated, or gate `token_limit` or `token_range`.

    Args:
        maximum: $L$, in tokens, 1 or more. With the trainer's `max_completion_length` here, the
            last branch is never reached.
        buffer: $c$, the tokens before the maximum in which it falls; 0: no ramp.
        name: What logs, recipes and files call the reward.

    Returns:
        A reward in [-1, 0].

    Raises:
        ConfigError: A length is no whole number, or the buffer is longer than the maximum.

    References:
        Yu et al. 2025, "DAPO", https://arxiv.org/abs/2503.14476, Eq. 13.

    Examples:
        >>> soft_overlong(100, 20).function(90, {})
        -0.5
    """
    _check_tokens("soft_overlong", "maximum", maximum, at_least=1)
    _check_tokens("soft_overlong", "buffer", buffer, at_least=0)
    if buffer > maximum:
        raise ConfigError(
            f"soft_overlong: buffer must be at most maximum ({maximum}), got {buffer}: it is the "
            "part of the maximum in which the punishment grows"
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
    r"""1 for a completion whose length lies in a range, falling to 0 on both sides.

    With $d = \max(a - n,\, n - b,\, 0)$ the tokens that are missing or too many,

    $$ r = \max(0,\; w - d) / w. $$

    For tasks where too short is a fault as well: a summary, a letter. What reaches 0 tokens before
    the ramp ends ($w > a$) keeps more than 0 for an empty completion.

    Args:
        low: $a$, the shortest length that is worth 1, in tokens.
        high: $b$, the longest.
        width: $w$, the tokens outside the range over which it falls from 1 to 0; 1: at once.
        name: What logs, recipes and files call the reward.

    Returns:
        A reward in [0, 1].

    Raises:
        ConfigError: A length is no whole number, the range is empty, or the width is below 1.

    Examples:
        >>> reward = token_range(100, 200, width=50)
        >>> [reward.function(n, {}) for n in (75, 100, 200, 210, 250)]
        [0.5, 1.0, 1.0, 0.8, 0.0]
    """
    _check_tokens("token_range", "low", low, at_least=0)
    _check_tokens("token_range", "high", high, at_least=0)
    _check_tokens("token_range", "width", width, at_least=1)
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


# Module-level functions, so that each reward can be sent to another process.
def _within(num_tokens: int, _reference: Reference, *, limit: int) -> float:
    return float(num_tokens <= limit)


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


def _check_tokens(factory: str, field: str, value: object, *, at_least: int) -> None:
    # A bool is an int to Python, and a mistake here.
    if not isinstance(value, int) or isinstance(value, bool) or value < at_least:
        raise ConfigError(
            f"{factory}: {field} must be a whole number of tokens, {at_least} or more, got "
            f"{value!r}"
        )
