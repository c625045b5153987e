"""Compares a training step of the published code with ours, difference by difference.

    python -m benchmarks.ladder UPSTREAM [--only TASK] [--steps 10] [--also verl nemo_rl]
        [--keep FOLDER] [--golden]

UPSTREAM is a checkout of NVlabs/GDPO. Both sides start from the same tiny model and the same
recorded rollouts. Each rung removes one more difference, and prints the cosine and the ratio of
norms of the two gradients, the share of rollouts whose advantages have different signs, and how far
apart the changes of the parameters are. `batch` is the cosine of the sums of the gradients over all
updates, and `alone` the cosine if only this difference is left. `--also` adds what these frameworks
compute today, in the environments of `python -m tests.conformance`. `--steps` also trains the demo
of `gdpo init`. research/ladder.md shows the tables, and what is run of the published code.
"""

import argparse
import hashlib
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import warnings
from dataclasses import dataclass, field
from datetime import date
from functools import partial
from pathlib import Path

import numpy as np
import torch
from benchmarks.ladder._cases import DEMO, GSM8K, TOOL_CALLING, write_cases
from benchmarks.ladder._ours import Arrangement, take_steps
from benchmarks.ladder._recording import Step, flat, sketch

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden" / "ladder.json"


@dataclass(frozen=True)
class Difference:
    """A difference from the published code, and what removes it."""

    name: str
    settings: dict = field(default_factory=dict)
    """Settings of the recipe (`--set`)."""
    arrangement: dict = field(default_factory=dict)
    """What no setting reaches: `plan` stands for the published forward passes."""
    truncates: bool = False
    """Whether long prompts are kept, so that no other row takes their place."""


@dataclass(frozen=True)
class Ladder:
    task: str
    module: str
    """Module that runs the published code, in a process of its own."""
    sizes: object
    batches: int
    learning_rate: float
    """Larger than the published rate, so that float32 resolves the change of the parameters."""
    scale: float
    """Published gradient divided by ours on the last rung."""
    differences: tuple


NO_CORRECTION = {"trainer.vllm_importance_sampling_correction": "false"}
LADDERS = (
    Ladder(
        "tool_calling",
        "verl_gdpo",
        TOOL_CALLING,
        1,
        1e-4,
        2.0,
        (
            Difference("an update has whole groups", arrangement={"shuffled": False}),
            Difference("rewards of `rlla.py`", {"task": "tool_calling_compatible"}),
            Difference(
                "long prompts are truncated",
                {
                    "data.max_prompt_length": "null",
                    "trainer.max_prompt_tokens": TOOL_CALLING.max_prompt,
                },
                truncates=True,
            ),
            Difference(
                "batch normalization over tokens", {"advantage_options": "{token_counts: true}"}
            ),
            Difference("no correction for vLLM", NO_CORRECTION),
            Difference(
                "micro-batches by tokens", {"trainer.pack_micro_batches": "false"}, {"plan": True}
            ),
            Difference(
                "gradient times micro-batches / 2, then clipped",
                {"trainer.max_grad_norm": 0.5, "trainer.adam_epsilon": "5e-9"},
            ),
            Difference("weight decay on all parameters", arrangement={"decays_all": True}),
        ),
    ),
    Ladder(
        "gsm8k",
        "trl_gdpo",
        GSM8K,
        3,
        1e-3,
        1.0,
        (
            Difference(
                "the same random micro-batches",
                {"trainer.pack_micro_batches": "false"},
                {"shuffled": False, "plan": True},
            ),
            Difference("rewards and prompt of the fork", {"task": "gsm8k_compatible"}),
            Difference(
                "long prompts are truncated",
                {"data.max_prompt_length": "null", "trainer.max_prompt_tokens": GSM8K.max_prompt},
                truncates=True,
            ),
            Difference("no correction for vLLM", NO_CORRECTION),
            Difference(
                "KL term without the probability ratio", {"trainer.use_bias_correction_kl": "false"}
            ),
            Difference(
                "1e-4 is added to each std", {"advantage": "benchmarks.ladder.epsilon:trl_gdpo"}
            ),
        ),
    ),
)

DEMO_LADDER = Ladder("demo", "trl_gdpo", DEMO, 0, 2e-4, 1.0, LADDERS[1].differences[-1:])
"""Has no rungs: ours samples, and the published code repeats the tokens."""


def published(ladder, upstream, folder, batches, *extra):
    """Run the published code in another process, because it imports packages of the same name."""
    command = [sys.executable, "-m", f"benchmarks.ladder.{ladder.module}", upstream, str(folder)]
    command += [str(batches), str(ladder.learning_rate), *extra]
    paths = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True
    )
    if done.returncode:
        sys.exit(done.stderr)
    return Step(**torch.load(folder / "theirs.pt", weights_only=True))


def ours(ladder, folder, rows, removed, batches, plan):
    """Take our step without the differences in `removed`."""
    changes, arrangement = {"trainer.learning_rate": ladder.learning_rate}, {}
    for difference in removed:
        changes |= difference.settings
        arrangement |= difference.arrangement
    if arrangement.get("plan"):
        arrangement["plan"] = tuple(plan)
    if rows:
        truncates = any(each.truncates for each in removed)
        rows = rows_read(ladder, rows, batches, truncates=truncates)
    return take_steps(
        folder,
        ladder.task,
        rows,
        ladder.sizes,
        changes=changes,
        arrangement=Arrangement(**arrangement),
        batches=batches,
    )


def rows_read(ladder, rows, batches, *, truncates):
    """Return the rows, where other rows take the places of those that are left out."""
    count = ladder.sizes.prompts * batches
    if truncates:
        return rows[:count]
    spare = iter(rows[count:])
    used = [next(spare) if row["overflows"] else row for row in rows[:count]]
    return used + [row for row in rows[:count] if row["overflows"]]


def cosine(a, b):
    a, b = a.double(), b.double()
    return float(a @ b / (a.norm() * b.norm()))


def compared(mine, theirs, start, same):
    """Return the figures of a rung. `same` says which rollouts are the same on both sides."""
    a, b = torch.cat(mine.gradients), torch.cat(theirs.gradients)
    moved, expected = mine.parameters - start, theirs.parameters - start
    advantages = torch.stack([torch.cat(mine.advantages), torch.cat(theirs.advantages)])[:, same]
    # Rounding errors have no sign.
    signs = advantages.where(advantages.abs() > 1e-6, 0).sign()
    return {
        "cosine": cosine(a, b),
        "batch": cosine(sum(mine.gradients), sum(theirs.gradients)),
        "norms": float(a.norm() / b.norm()),
        "signs": float((signs[0] != signs[1]).float().mean()),
        "change": cosine(moved, expected),
        "apart": float((moved - expected).norm() / expected.norm()),
    }


def commands_of(names):
    """Return the command of each framework that can be run, with its environment variables."""
    from tests.conformance.__main__ import prepared
    from tests.environments import NotRunError

    if not names:
        print("Rows of verl and NeMo-RL of today are left out: pass --also verl nemo_rl")
    commands = {}
    for name in names:
        try:
            framework, python, variables = prepared(name)
        except NotRunError as why:
            print(f"The rows of {name} are left out: {why}")
            continue
        command = [python, Path(__file__).with_name("frameworks.py"), name]
        commands[name] = command, variables | framework.without
    return commands


def advantages_of(command, variables, file, **batch):
    """Return the advantages that a framework's own GDPO computes, in its environment."""
    np.savez(file, **batch)
    done = subprocess.run(
        [*command, file], env={**os.environ, **variables}, capture_output=True, text=True
    )
    if done.returncode:
        sys.exit(done.stderr)
    with np.load(file) as found:
        return torch.tensor(found["advantages"])


def climb(ladder, upstream, folder, also):
    """Print all rungs of a ladder."""
    rows = write_cases(folder, ladder.task, ladder.sizes, batches=ladder.batches, spare=2)
    theirs = published(ladder, upstream, folder, ladder.batches)
    start = parameters(folder)
    overflow = [row["overflows"] for row in rows[: ladder.sizes.prompts * ladder.batches]]
    kept = ~torch.tensor(overflow).repeat_interleave(ladder.sizes.samples)

    def rung(removed):
        mine = ours(ladder, folder, rows, removed, ladder.batches, theirs.more["plan"])
        truncates = any(each.truncates for each in removed)
        return compared(mine, theirs, start, kept | truncates)

    print(f"\n## {ladder.task}\n")
    norms = ", ".join(f"{float(each.norm()):.3f}" for each in theirs.gradients)
    print(f"Norms of the published gradients: {norms}\n")
    print(
        "| rung | cosine | batch | norms | different sign | change: cosine "
        "| change: distance | alone |"
    )
    print("|---|---|---|---|---|---|---|---|")
    print_row("as shipped", rung(()), "")
    for i, difference in enumerate(ladder.differences):
        others = [each for each in ladder.differences if each is not difference]
        print_row(difference.name, rung(ladder.differences[: i + 1]), shown(rung(others)["cosine"]))
    settable = [
        each for each in ladder.differences if each.settings and "plan" not in each.arrangement
    ]
    print_row("only the differences that settings remove", rung(settable), "")
    for name, command in also.items():
        file = folder / f"{name}.npz"
        own = Difference("", arrangement={"advantages_of": partial(advantages_of, *command, file)})
        found = rung([*ladder.differences, own])
        version = np.load(file)["version"]
        print_row(f"last rung with {name} {version}'s own GDPO", found, "")
    if ladder.task == "gsm8k":
        theirs_now = Difference("", {"advantage": "gdpo"}, {"trls_own": True})
        print_row("last rung with TRL's own GDPO", rung([*ladder.differences, theirs_now]), "")
        rounded = published(ladder, upstream, folder, ladder.batches, "bfloat16")
        same = compared(rounded, theirs, start, slice(None))
        print_row("the published step in bfloat16, compared with float32", same, "")
    return rows, theirs


def print_row(name, found, alone):
    columns = [shown(found["cosine"]), shown(found["batch"])]
    columns += [f"{found['norms']:.6f}", f"{found['signs']:.1%}"]
    columns += [shown(found["change"]), f"{found['apart']:.1e}", alone]
    print(f"| {name} | {' | '.join(columns)} |", flush=True)


def shown(value):
    """Return a cosine with as many digits as it needs to differ from 1."""
    return f"1 - {1 - value:.1e}" if value > 0.999 else f"{value:.4f}"


def parameters(folder):
    from transformers import AutoModelForCausalLM

    return flat(AutoModelForCausalLM.from_pretrained(f"{folder}/model").parameters())


def walk(ladder, upstream, folder, steps):
    """Print how far apart both sides are after several steps without any difference."""
    rows = write_cases(folder, ladder.task, ladder.sizes, batches=steps, seed=1)
    theirs = published(ladder, upstream, folder, steps)
    mine = ours(ladder, folder, rows, ladder.differences, steps, theirs.more["plan"])
    print_steps(ladder, folder, steps, mine, theirs)


def walk_demo(upstream, folder, steps):
    """Print the same for the demo, where ours samples and the published code repeats the tokens."""
    from gdpo.lab.recipes.starter import write_project

    write_project(folder / "project")
    sys.path.insert(0, str(folder.absolute() / "project"))  # for my_task and my_rewards
    shutil.copytree(folder / "project" / "tiny_models" / "1", folder / "model")
    mine = ours(DEMO_LADDER, folder, None, DEMO_LADDER.differences, steps, ())
    torch.save(mine.more["sampled"], folder / "rollouts.pt")
    theirs = published(DEMO_LADDER, upstream, folder, steps, "demo")
    print_steps(DEMO_LADDER, folder, steps, mine, theirs)


def print_steps(ladder, folder, steps, mine, theirs):
    start = parameters(folder)
    found = compared(mine, theirs, start, slice(None))
    largest = float((mine.parameters - theirs.parameters).abs().max())
    moved = float((theirs.parameters - start).abs().max())
    print(
        f"\n{ladder.task}, {steps} steps ({len(theirs.gradients)} updates): parameters differ by "
        f"at most {largest:.1e}, and moved by up to {moved:.1e}; relative distance "
        f"{found['apart']:.1e}; cosine of the last gradients "
        f"{shown(cosine(mine.gradients[-1], theirs.gradients[-1]))}",
        flush=True,
    )


def write_golden(ladder, rows, theirs, commit):
    """Write what the test of the last rung needs: the published gradients as sketches."""
    golden = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    golden[ladder.task] = {
        "source": f"NVlabs/GDPO {commit}, {ladder.module.replace('_gdpo', '-GDPO')}",
        "date": date.today().isoformat(),
        "rollouts": digest(rows),
        "plan": theirs.more["plan"],
        "advantages": [[round(float(a), 6) for a in batch] for batch in theirs.advantages],
        "gradients": [[float(f"{x:.8g}") for x in sketch(each)] for each in theirs.gradients],
    }
    lines = [f"{json.dumps(task)}: {json.dumps(facts)}" for task, facts in golden.items()]
    GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def digest(rows):
    return hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()[:16]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("upstream")
    parser.add_argument("--only", choices=[ladder.task for ladder in (*LADDERS, DEMO_LADDER)])
    parser.add_argument("--steps", type=int, default=0, help="Also compare this many steps.")
    parser.add_argument(
        "--also",
        nargs="+",
        default=[],
        choices=["verl", "nemo_rl"],
        help="Frameworks of today. Creates their environments in .conformance if they are missing.",
    )
    parser.add_argument("--keep", type=Path, help="Folder for the inputs and the results.")
    parser.add_argument("--golden", action="store_true", help="Write the golden of the tests.")
    given = parser.parse_args()
    quiet()
    head = ["git", "-C", given.upstream, "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(head, capture_output=True, text=True).stdout.strip()
    print(f"NVlabs/GDPO {commit or 'of unknown commit'}, torch {torch.__version__}, float32")
    also = commands_of(given.also)
    kept = Path(given.keep or tempfile.mkdtemp())
    for ladder in LADDERS:
        if given.only in (None, ladder.task):
            folder = kept / ladder.task
            rows, theirs = climb(ladder, given.upstream, fresh(folder), also)
            if given.golden:
                write_golden(ladder, rows, theirs, commit)
            if given.steps:
                place = fresh(folder.with_name(f"{ladder.task}-steps"))
                walk(ladder, given.upstream, place, given.steps)
    if given.steps and given.only in (None, "demo"):
        walk_demo(given.upstream, fresh(kept / "demo"), given.steps)


def fresh(folder):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def quiet():
    import datasets
    import transformers

    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    datasets.disable_progress_bars()
    transformers.utils.logging.disable_progress_bar()


if __name__ == "__main__":
    main()
