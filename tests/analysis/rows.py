"""A dump of two rewards and two steps, small enough to be worked out by hand."""

ROWS = [
    # step, prompt, wide, narrow, tokens
    (1, "a", 0.0, 0.0, 10),
    (1, "a", 10.0, 0.0, 20),
    (1, "b", 5.0, 0.0, 30),
    (1, "b", 5.0, 1.0, 10),
    (2, "a", 0.0, None, 10),
    (2, "a", 10.0, None, 20),
    (2, "b", 0.0, 0.0, 10),
    (2, "b", 10.0, 1.0, 30),
]
