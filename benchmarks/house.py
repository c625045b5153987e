"""Counts what a maintainer carries: lines, files, names, functions, and how far things travel.

    python benchmarks/house.py [FOLDER]

FOLDER is the root of a checkout (this one, if it is left out). It runs `gdpo check` of a shipped
recipe and `gdpo analyze` of a parquet file with the code of that checkout, once so that all is
imported, and once to note the module of each function that is called for the first time. A return
is a step into a module that was left before.
"""

import ast
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

WALK = """
import sys
ways = []
seen = set()
def enter(frame, event, _):
    code = frame.f_code
    if event == "call" and f"{SRC}/gdpo/" in code.co_filename and code not in seen:
        seen.add(code)
        if not ways or ways[-1] != code.co_filename:
            ways.append(code.co_filename)
import gdpo.cli
def run():
    try:
        gdpo.cli.main(ARGUMENTS)
    except SystemExit as end:
        assert not end.code, f"{ARGUMENTS} ended with {end.code}"
run()
sys.setprofile(enter)
run()
sys.setprofile(None)
print(len(ways) - len(set(ways)), file=sys.stderr)
"""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(tree: ast.AST) -> Iterator[Function]:
    return (node for node in ast.walk(tree) if isinstance(node, Function))


def code_lines(function: Function) -> int:
    """Lines without the docstring, blank lines and comments."""
    lines = {node.lineno for node in ast.walk(function) if hasattr(node, "lineno")}
    return len(lines) - bool(ast.get_docstring(function))


def public_functions(tree: ast.AST) -> Iterator[Function]:
    """Those of the module and of its classes; a function within a function is nobody's to call."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            yield from public_functions(node)
        elif isinstance(node, Function) and not node.name.startswith("_"):
            yield node


def is_typed(function: Function) -> bool:
    given = function.args.posonlyargs + function.args.args + function.args.kwonlyargs
    named = [argument for argument in given if argument.arg not in ("self", "cls")]
    return function.returns is not None and all(a.annotation is not None for a in named)


def share(values: list[bool]) -> str:
    return f"{100 * sum(values) / len(values):.0f} % of {len(values):,}"


def names(tree: ast.AST) -> Counter[str]:
    found = (getattr(node, "id", None) or getattr(node, "attr", None) for node in ast.walk(tree))
    return Counter(name for name in found if isinstance(name, str))


def exported(tree: ast.Module) -> list[str]:
    lists = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    ]
    return [
        ast.literal_eval(item) for each in lists if isinstance(each, ast.List) for item in each.elts
    ]


def returns(root: Path, folder: Path, *arguments: str) -> int:
    """How often a command comes back to a module; its files go into the folder."""
    source = f"SRC = {str(root / 'src')!r}\nARGUMENTS = {list(arguments)!r}\n{WALK}"
    environment = {**os.environ, "PYTHONPATH": str(root / "src"), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", source]
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd=folder, check=False
    )
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    return int(done.stderr.splitlines()[-1])


def a_rollout_file(folder: Path) -> Path:
    rng = np.random.default_rng(0)
    table = {
        "step": np.repeat(np.arange(8), 64),
        "prompt": [f"prompt {i // 8}" for i in range(512)],
        "completion": [f"completion {i}" for i in range(512)],
        "correctness_reward": rng.integers(0, 2, 512).astype(float),
        "format_reward": rng.integers(0, 3, 512).astype(float),
    }
    pq.write_table(pa.table(table), folder / "rollouts.parquet")
    return folder / "rollouts.parquet"


def rows_of_gsm8k(folder: Path) -> Path:
    rows = [{"question": f"What is {i} + 1?", "answer": f"#### {i + 1}"} for i in range(600)]
    file = folder / "train.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


def a_model(folder: Path) -> Path:
    vocabulary = {"<unk>": 0, "<end>": 1}
    PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(vocabulary, unk_token="<unk>")),
        eos_token="<end>",
        pad_token="<end>",
        chat_template="{% for m in messages %}{{ m['content'] }}{% endfor %}",
    ).save_pretrained(folder / "model")
    config = LlamaConfig(
        vocab_size=2,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        eos_token_id=1,
    )
    LlamaForCausalLM(config).save_pretrained(folder / "model")
    return folder / "model"


def size(files: list[Path]) -> str:
    lines = sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)
    return f"{lines:,} / {len(files)}"


def figures(root: Path, folder: Path) -> dict[str, object]:
    files = sorted((root / "src" / "gdpo").rglob("*.py"))
    trees = {file: ast.parse(file.read_text(encoding="utf-8")) for file in files}
    every = [(file, function) for file, tree in trees.items() for function in functions(tree)]
    used = {file: names(tree) for file, tree in trees.items()}
    private = [(f, each) for f, each in every if each.name.startswith("_") and each.name[1] != "_"]
    public = [function for tree in trees.values() for function in public_functions(tree)]
    lengths = sorted(code_lines(function) for _, function in every)
    data, model = f"data.source={rows_of_gsm8k(folder)}", f"model={a_model(folder)}"
    check = ("check", str(root / "recipes" / "gsm8k"), "--set", data, "--set", model)
    analyze = ("analyze", str(a_rollout_file(folder)), "--output", str(folder / "page.html"))
    return {
        "src: lines / files": size(files),
        "tests: lines / files": size(list((root / "tests").rglob("*.py"))),
        "rollouts/readers: lines / files": size([f for f in files if f.parent.name == "readers"]),
        "returns, gdpo check": returns(root, folder, *check),
        "returns, gdpo analyze": returns(root, folder, *analyze),
        "public names": len({name for tree in trees.values() for name in exported(tree)}),
        "private functions used once": share([used[f][each.name] == 1 for f, each in private]),
        "code lines of a function, p95": lengths[int(0.95 * len(lengths))],
        "code lines of a function, longest": lengths[-1],
        "public functions typed": share([is_typed(function) for function in public]),
        "public functions with a docstring": share([bool(ast.get_docstring(f)) for f in public]),
    }


def main() -> None:
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[1]).resolve()
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(figures(root, Path(folder)), indent=2, ensure_ascii=False))


if __name__ == "__main__":
    main()
