"""An option that there is not: the message names what is probably meant."""

import pytest


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (("train", "x", "--steps", "3"), "--set trainer.max_steps=..."),
        (("check", "x", "--seed=3"), "--set trainer.seed=..."),
        (("train", "x", "--model", "y"), "--set model=..."),
        (("train", "x", "--resum"), "--resume"),
        (("compare", "x", "--seed", "3"), "--seeds"),
        (("analyze", "x", "--rewardz=a"), "--rewards"),
        (("analyze", "x", "-o", "page.html"), "--output"),
    ],
)
def test_what_is_meant_is_an_option_or_a_key_of_the_recipe(gdpo_says, arguments, meant):
    code, out, err = gdpo_says(*arguments)
    option = next(a for a in arguments if a.startswith("-")).partition("=")[0]
    (message,) = [line.strip("│ ") for line in (out + err).splitlines() if "Unknown" in line]
    assert code == 2
    assert option in message
    assert message.endswith(f"{meant}?")


@pytest.mark.parametrize("arguments", [("train", "x", "--zzzz"), ("report", "x", "--max-steps")])
def test_nothing_is_meant_where_nothing_is_near(gdpo_says, arguments):
    _, out, err = gdpo_says(*arguments)
    assert f"Unknown option: {arguments[-1]}. " in out + err
    assert "Did you mean" not in out + err
