"""The head of a run's README that the Hugging Face Hub reads: YAML between two lines of dashes."""

import re
from collections.abc import Sequence
from pathlib import Path

from gdpo.training._recipe import Recipe
from gdpo.training._smollm2 import SMOLLM2
from gdpo.training._yaml import dump_yaml

_ON_HUB = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
_FILE = re.compile(r"\.(jsonl?|parquet|csv|arrow|gz)$")
_SMOLLM2 = "HuggingFaceTB/SmolLM2-135M-Instruct"


def front_matter(recipe: Recipe, sources: Sequence[str], *, engine: str = "trl") -> str:
    """What the Hub can look up: the base model and data sets that lie there, and tags.

    Args:
        recipe: Of the run.
        sources: Files and data sets that it was trained on.
        engine: What trained it: trl or verl.
    """
    base = _SMOLLM2 if recipe.model == SMOLLM2 else recipe.model
    data = [source for source in sources if _is_on_hub(source)]
    tags = ("gdpo", engine, "multi-reward", recipe.task, recipe.advantage)
    facts = {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        **({"base_model": base} if _is_on_hub(base) else {}),
        **({"datasets": data} if data else {}),
        # Not a user's module:attribute.
        "tags": [tag for tag in dict.fromkeys(tags) if ":" not in tag],
    }
    return f"---\n{dump_yaml(facts).strip()}\n---\n\n"


def _is_on_hub(name: str) -> bool:
    """Whether a name can be one on the Hub, and is not that of something here."""
    named = _ON_HUB.fullmatch(name) is not None and not _FILE.search(name)
    return named and not Path(name).exists()
