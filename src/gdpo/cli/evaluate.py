"""`gdpo evaluate`."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter


def evaluate(
    model: str,
    /,
    *,
    benchmarks: str,
    data: Annotated[list[str] | None, Parameter(negative=())] = None,
    samples: int = 1,
    temperature: float = 0.0,
    top_p: float = 1.0,
    max_tokens: int = 1024,
    token_limit: int = 4000,
    rows: int | None = None,
    seed: int = 0,
    server: str | None = None,
    deadline: float | None = None,
    engine: str = "transformers",
    at_once: int = 32,
    output: Path | None = None,
    baseline: Path | None = None,
    push: str | None = None,
) -> int:
    """Evaluate a model on benchmarks: correctness and constraints side by side, with intervals.

    Every response is kept as a rollout record; the same command goes on where it was stopped.
    Intervals are of 95 %, over problems: samples of one problem are alike.

    Args:
        model: A run directory, a folder, a name on the Hub or smollm2-135m; with --server, what the
            server calls it. `gold` answers with the rows' own answers, and must score 1; `empty`
            with nothing.
        benchmarks: Names with commas: gsm8k, math500, aime24, amc23, amc22_23, minerva, olympiad,
            humaneval, humaneval_plus, mbpp, mbpp_plus, leetcode, apps, codecontests, codeforces,
            taco, tool_calling, bfcl_simple_python and the other categories of BFCL, those of
            several turns too (bfcl: all of them), bfcl_toolrl_simple_python and so on as the
            paper's authors asked (bfcl_toolrl: all of them); or a task, with --data.
        data: NAME=FILE: rows of a benchmark from a file instead of the Hub; may be repeated.
        samples: Responses to each problem; more than one needs a temperature.
        temperature: 0: the likeliest token each time. The paper's maths: 0.6, with --top-p 0.95.
        top_p: Share of probability that is sampled from.
        max_tokens: Longest response.
        token_limit: A response with more tokens counts as too long.
        rows: The first so many problems of each benchmark.
        seed: Decides the sampling.
        server: Ask a server with OpenAI's chat protocol, as `vllm serve` is one:
            http://host:8000/v1.
        deadline: Seconds that a server may send nothing; it may take as long as it takes while
            something comes. Left out: 600, or what max_tokens take at 10 tokens/s if that is more.
        engine: What runs a model here: transformers, or vllm where that is installed.
        at_once: Responses that are generated together, or requests that wait side by side.
        output: Folder of the evaluation. Left out: `evaluation` in a run, else evaluations/MODEL.
        baseline: Folder of another evaluation: differences to it are shown, problem by problem.
        push: OWNER/NAME: put the run on the Hub afterwards, as `gdpo push` does.
    """
    from rich.console import Console

    from gdpo.cli._evaluating import files_of, names_of, run_evaluation
    from gdpo.cli._pushing import check_run, push_run
    from gdpo.evaluation import Sampling, Settings
    from gdpo.evaluation.named import weights_of

    settings = Settings(
        model=model,
        sampling=Sampling(samples, temperature, top_p, max_tokens, seed),
        token_limit=token_limit,
        rows=rows,
        data=files_of(data or ()),
        weights="" if server else weights_of(model),
        engine=engine,
    )
    names = names_of(benchmarks)
    console = Console(highlight=False)
    if push is not None:
        check_run(Path(model), push)
    run_evaluation(
        settings,
        names,
        console,
        server=server,
        deadline=deadline,
        at_once=at_once,
        output=output,
        baseline=baseline,
    )
    if push is not None:
        push_run(Path(model), push, console)
    return 0
