"""The toys by name."""

from collections.abc import Mapping

from gdpo.experiments._reading import Measured
from gdpo.experiments.toys._toy import Choice, Reward, Toy, earned_by


def _plain(name: str, choice: int, *, unit: float = 1.0, weight: float = 1.0) -> Reward:
    """A reward that is the unit if the choice is 1, and 0 otherwise."""
    return Reward(Measured(name, 0.0, unit, weight), {choice: unit})


_ESCAPE = Toy(
    name="escape",
    question="Is a rare reward learnt beside a dense one of six times its range?",
    expected=(
        "Under Adam a factor common to all advantages changes nothing, so that rloo is "
        "grpo_no_std. What divides each reward by its spread over the batch, or lifts what varies "
        "in few groups, has the format first; a raw sum has it late."
    ),
    source="rloo is grpo_no_std times 4/3 in groups of 4; the order was measured, not derived",
    failure="The format is not at 80 % after 300 steps.",
    choices=(earned_by(0.006), Choice(graded=True)),
    rewards=(
        _plain("format", 0),
        Reward(Measured("correctness", -3.0, 3.0, 1.0), {1: 3.0}),
    ),
    steps=300,
    constraint={"format": 0.8},
)

_DUPLICATED = Toy(
    name="duplicated",
    question="Does a reward that is given twice count twice?",
    expected=(
        "The influence of reward k on a sum of normalized rewards is (Cw)_k: 2 : 2 : 1 for two "
        "copies and an independent one. With the weights C^(-1/2) w it is 1.45 : 1.45 : 1 at a "
        "shrinkage of 0.1, with C^-1 w 1.05 : 1.05 : 1."
    ),
    source="Covariance of a weighted sum; the eigenvalues of the shrunk C are 1.9, 0.1 and 1",
    failure="The copied reward is learnt much sooner than the single one, which started alike.",
    choices=(earned_by(0.1), earned_by(0.1)),
    rewards=(_plain("copied", 0), _plain("copy", 0), _plain("single", 1)),
    constraint={"single": 0.8},
)

_JUNK = Toy(
    name="junk",
    question="Does a reward that is constant but for 0.1 % of jitter slow the other one down?",
    expected=(
        "Normalized in its group, jitter gets the share of the advantages that its weight asks "
        "for; in a raw sum without a standard deviation it has none. GRPO blows it up as well, in "
        "the groups where nothing else varies: 66 % at the start."
    ),
    source="Corr(A, z_k)^2 = pi_k / sum of pi, pi_k being the share of groups where k varies",
    failure="Correctness takes longer than with that reward left out.",
    # What no reward depends on: there, whatever the advantages say is noise.
    choices=(earned_by(0.1), *[Choice(graded=True)] * 30),
    rewards=(
        _plain("correctness", 0),
        Reward(Measured("junk", 0.0, 1.0, 1.0), {}, base=0.5, jitter=0.001),
    ),
    prompts=4,
    constraint={"correctness": 0.8},
)

_SATURATING = Toy(
    name="saturating",
    question="Is a reward that is nearly always earned kept while another one pulls against it?",
    expected=(
        "The gradient of the expected sum turns against the saturated reward where the cosine "
        "times the slope of the other one, p (1 - p), outweighs its own."
    ),
    source="Both slopes are exact; at the start they are 0.048 and 0.16, the cosine is -0.5",
    failure="The saturated reward falls, or the other one is not learnt.",
    choices=(earned_by(0.95), earned_by(0.2)),
    rewards=(_plain("saturated", 0), _plain("other", 1)),
    cosine=-0.5,
    constraint={"saturated": 0.95},
)

_OPPOSED = Toy(
    name="opposed",
    question="Two rewards want the opposite of one choice: does the weight decide, or the unit?",
    expected=(
        "Normalized, the advantage is (1 - 0.5) z: the heavier one wins. In raw units it is "
        "(1 - 0.5 * 10) c: the one of the larger unit wins. Equal weights would give exactly 0."
    ),
    source="z of 1 - r is minus z of r",
    failure="The reward of half the weight wins.",
    choices=(earned_by(0.5),),
    rewards=(
        _plain("heavier", 0),
        Reward(Measured("larger", 0.0, 10.0, 0.5), {0: -10.0}, base=10.0),
    ),
    constraint={"heavier": 0.8},
)

_SPARSE = Toy(
    name="sparse",
    question="What does a reward that few groups earn count beside one of the same unit?",
    expected=(
        "At a rate of 2 % it varies in 7.8 % of the groups of 4, at 50 % in 87.5 %: what lifts it "
        "by the root of that ratio lifts it 3.35 times in a large batch. One of 32 groups holds "
        "2.5 of them, more where the lift is smaller: there it comes to about 3.0."
    ),
    source="pi = 1 - p^4 - (1 - p)^4",
    failure="The sparse reward is learnt late.",
    choices=(earned_by(0.02), earned_by(0.5)),
    rewards=(_plain("sparse", 0), _plain("dense", 1)),
    constraint={"sparse": 0.8},
)

_TEN = Toy(
    name="ten_rewards",
    question="Ten independent rewards, one of them in a unit ten times as large: are nine lost?",
    expected=(
        "Normalized, all ten have the same influence, whatever the unit. In a raw sum the large "
        "one has ten times that of another."
    ),
    source="Independent rewards: C is the identity, so that (Cw)_k = w_k",
    failure="The nine lag behind the large one.",
    choices=tuple(earned_by(0.2) for _ in range(10)),
    rewards=(
        _plain("large", 0, unit=10.0),
        *(_plain(f"plain_{k}", k) for k in range(1, 10)),
    ),
    learning_rate=0.05,
    constraint={"plain_1": 0.8},
)

TOYS: Mapping[str, Toy] = {
    toy.name: toy for toy in (_ESCAPE, _DUPLICATED, _JUNK, _SATURATING, _OPPOSED, _SPARSE, _TEN)
}
