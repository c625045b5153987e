"""Writes rollout files with verl's default trainer, on a real TransferQueue.

    python tests/conformance/verl/real_dump.py RECORDED FOLDER

RECORDED contains rollouts that gdpo recorded, one parquet file per step. The script puts the
rollouts of each step into verl's queue, as its agent loop does. verl computes advantages
(`algorithm.adv_estimator=gdpo/gdpo`) and writes `FOLDER/<step>.jsonl`. Prints one line of JSON.
"""

import json
import sys
from pathlib import Path

import paths
import pyarrow.parquet as pq
import ray
import real_queue
import torch
import transfer_queue as tq


class Tokenizer:
    """Encodes one token per character; 0 is padding."""

    pad_token_id = 0

    def decode(self, ids, *, skip_special_tokens):
        return "".join(map(chr, filter(None, ids.tolist())))


def tokens(messages):
    return torch.tensor([ord(c) for message in messages for c in message["content"]])


def row(rollout):
    """Return a row with the fields of verl's agent loop. Its reference is in `extra`."""
    prompt, response = tokens(rollout["prompt"]), tokens(rollout["completion"])
    mask = torch.ones(len(response), dtype=torch.long)
    score = sum(rollout["weights"][name] * value for name, value in rollout["rewards"].items())
    rewarded = torch.zeros(len(response))
    rewarded[-1] = score
    return {
        "uid": f"prompt-{rollout['group_id']}",
        "prompts": prompt,
        "responses": response,
        "input_ids": torch.cat([prompt, response]),
        "position_ids": torch.arange(len(prompt) + len(response)),
        "response_mask": mask,
        "rm_scores": rewarded,
        "rollout_log_probs": torch.zeros(len(response)),
        "reward_model": {"ground_truth": rollout["extra"]},
        "extra_fields": {"reward_extra_info": {"score": score, **rollout["rewards"]}},
    }


def put(rollouts):
    keys = [f"prompt-{rollout['group_id']}_{rollout['sample_id']}_0" for rollout in rollouts]
    rows = [row(rollout) for rollout in rollouts]
    tags = [{"seq_len": len(each["input_ids"])} for each in rows]
    data = real_queue.list_of_dict_to_tensordict(rows)
    tq.kv_batch_put(keys=keys, fields=data, tags=tags, partition_id="train")
    return tq.KVBatchMeta(keys=keys, tags=tags, partition_id="train")


def main(recorded, folder):
    real_queue.start()
    files, dumped = sorted(Path(recorded).glob("step_*.parquet")), 0
    for file in files:
        rollouts = pq.read_table(file).to_pylist()
        trainer = paths.v1_trainer()
        trainer.config = paths.configured(gdpo_reward_keys=list(rollouts[0]["rewards"]))
        trainer.tokenizer = Tokenizer()
        trainer.global_steps = rollouts[0]["step"]
        meta = put(rollouts)
        trainer._compute_advantage(meta, metrics={})
        trainer._init_dump_executor()
        trainer._log_rollout_data(meta, {}, folder)
        trainer._shutdown_dump_executor()
        tq.kv_clear(keys=meta.keys, partition_id="train")
        dumped += len(rollouts)
    printed = {
        "path": "V1, dump",
        "version": paths.__version__,
        "steps": len(files),
        "rows": dumped,
    }
    sys.stdout.write(json.dumps(printed) + "\n")
    tq.close()
    ray.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
