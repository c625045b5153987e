"""Implements `gdpo evaluate`."""

from pathlib import Path


def evaluate(
    model: str,
    /,
    *,
    benchmarks: str,
    data: list[str] | None = None,
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
    max_model_len: int | None = None,
    enforce_eager: bool = False,
    at_once: int = 32,
    output: Path | None = None,
    baseline: Path | None = None,
) -> int:
    """Evaluate a model on benchmarks and print every score with a 95 % confidence interval.

    Correctness and constraints (format, length, bugs) are printed side by side. The confidence
    intervals are computed over problems, because samples of the same problem are not independent.
    Every response is saved as a rollout record. Rerun the same command to resume an interrupted
    evaluation.

    Args:
        model: A run directory, a model folder, a model name on the Hub, or `smollm2-135m`. With
            --server: the name of the model on that server. Two special names test the scoring:
            `gold` returns the reference answers and must score 1, and `empty` returns empty
            responses.
        benchmarks: Comma-separated benchmarks: gsm8k, math500, aime24, amc23, amc22_23, minerva,
            olympiad, humaneval, humaneval_plus, mbpp, mbpp_plus, leetcode, apps, codecontests,
            codeforces, taco, tool_calling. For BFCL with gdpo's prompt, use bfcl (all categories)
            or one category, such as bfcl_simple_python. For BFCL with ToolRL's prompt, as in the
            paper, use bfcl_toolrl or one category, such as bfcl_toolrl_simple_python. With --data,
            the name of any task is also accepted.
        data: Read the rows of a benchmark from a file instead of the Hub, given as NAME=FILE. Can
            be repeated.
        samples: Number of responses per problem. More than 1 needs --temperature.
        temperature: Sampling temperature. 0 means greedy decoding. The paper's maths results use
            0.6 with --top-p 0.95.
        top_p: Cumulative probability for nucleus sampling, above 0 and at most 1.
        max_tokens: Maximum response length in tokens.
        token_limit: Count a response with more tokens than this as too long.
        rows: Use only the first N problems of each benchmark.
        seed: Random seed for sampling.
        server: URL of an OpenAI-compatible server, such as http://host:8000/v1 for `vllm serve`.
        deadline: Stop if the server sends nothing for this many seconds. Default: 600, or more if a
            response of the maximum length would take longer at 10 tokens/s.
        engine: Library that runs a local model: `transformers`, or `vllm` if it is installed.
        max_model_len: With --engine vllm: maximum length of a prompt plus its response, in tokens.
            vLLM reserves memory for this length. Default: the model's.
        enforce_eager: With --engine vllm: do not compile the model. vLLM starts sooner and
            generates more slowly.
        at_once: Number of responses to generate in one batch, or number of concurrent requests to
            the server.
        output: Folder to write the evaluation to. Default: `evaluation` in the run directory if
            MODEL is a run, otherwise evaluations/MODEL.
        baseline: Folder of another evaluation to compare with. Also prints the difference in each
            score, paired by problem.
    """
    from gdpo.lab.cli._evaluating import (
        files_of,
        progress_shown,
        responders,
        show_results,
        the_benchmarks,
    )
    from gdpo.lab.evaluation import EvaluationSettings, Sampling
    from gdpo.lab.evaluation import evaluate as run_evaluation
    from gdpo.lab.evaluation.evaluation import read_results
    from gdpo.lab.evaluation.named import folder_of, weights_of
    from gdpo.lab.evaluation.responders import check_sampling
    from gdpo.lab.evaluation.tables import add_to_readme
    from gdpo.lab.runs.directory import RunDirectory

    settings = EvaluationSettings(
        model=model,
        sampling=Sampling(samples, temperature, top_p, max_tokens, seed),
        token_limit=token_limit,
        rows=rows,
        data=files_of(data or ()),
        weights="" if server else weights_of(model),
        engine=engine,
        max_model_len=max_model_len,
    )
    check_sampling(settings.sampling)
    listed = the_benchmarks(benchmarks, settings.data)
    folder = output or folder_of(model)
    compared = read_results(baseline) if baseline else None
    answering = responders(
        settings,
        folder,
        server=server,
        deadline=deadline,
        at_once=at_once,
        enforce_eager=enforce_eager,
    )
    try:
        with progress_shown() as show:
            results = run_evaluation(
                settings, listed, answering, folder, lambda now: show(now, now.benchmark)
            )
    except KeyboardInterrupt as stopped:
        saved = "stopped. Finished responses are saved; rerun the same command to resume"
        raise KeyboardInterrupt(saved) from stopped
    readme = RunDirectory(Path(model)).readme
    if output is None and server is None and readme.is_file():
        add_to_readme(readme, results, settings)
    show_results(results, folder, compared, baseline)
    return 0
