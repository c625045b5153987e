"""Evaluation: benchmarks, responses that are kept, and scores with intervals."""

from gdpo.evaluation._benchmarks import (
    BENCHMARKS,
    GROUPS,
    Benchmark,
    Measure,
    Source,
    find_benchmark,
    measures,
    rewards_of,
)
from gdpo.evaluation._evaluation import (
    Progress,
    Result,
    Settings,
    evaluate,
    read_results,
    result_of,
)
from gdpo.evaluation._intervals import Estimate, difference, share
from gdpo.evaluation._named import folder_of, responder_of, weights_of
from gdpo.evaluation._overlap import benchmarks_at_hand, overlap_findings
from gdpo.evaluation._push import (
    HubError,
    Upload,
    add_to_readme,
    check_push,
    check_repository,
    push,
    uploads,
)
from gdpo.evaluation._responders import Responder, Response, Sampling, check_sampling
from gdpo.evaluation._sanity import Sanity, sanity
from gdpo.evaluation._server import Server, ServerError
from gdpo.evaluation._tables import (
    bfcl_lines,
    differences_table,
    results_table,
    unscorable_lines,
)

__all__ = [
    "BENCHMARKS",
    "GROUPS",
    "Benchmark",
    "Estimate",
    "HubError",
    "Measure",
    "Progress",
    "Responder",
    "Response",
    "Result",
    "Sampling",
    "Sanity",
    "Server",
    "ServerError",
    "Settings",
    "Source",
    "Upload",
    "add_to_readme",
    "benchmarks_at_hand",
    "bfcl_lines",
    "check_push",
    "check_repository",
    "check_sampling",
    "difference",
    "differences_table",
    "evaluate",
    "find_benchmark",
    "folder_of",
    "measures",
    "overlap_findings",
    "push",
    "read_results",
    "responder_of",
    "result_of",
    "results_table",
    "rewards_of",
    "sanity",
    "share",
    "unscorable_lines",
    "uploads",
    "weights_of",
]
