"""Runs parts of verl's default trainer on a real TransferQueue, with Ray on this machine's CPUs.

    python tests/conformance/verl/real_queue.py FOLDER

The script puts rows into the queue, as verl's agent loop does. verl pads the batch, computes
advantages, puts them back and writes its rollout files into FOLDER. Our record is written to
FOLDER-records. Prints one line of JSON.
"""

import json
import sys
from pathlib import Path

import paths
import ray
import torch
import transfer_queue as tq
import verl
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from verl.trainer.ppo.padding_utils import upsample_batch_to_divisible_size
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from gdpo.rollouts import read_rollouts

MULTIPLE = 16


class Tokenizer:
    """Decodes a response to its length."""

    pad_token_id = 0

    def decode(self, ids, *, skip_special_tokens):
        return str(len(ids))


def start():
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, object_store_memory=10**8)
    folder = Path(verl.__file__).parent / "trainer" / "config"
    with initialize_config_dir(str(folder), version_base=None):
        config = compose("ppo_trainer").transfer_queue
    OmegaConf.set_struct(config, False)
    config.enable, config.backend.SimpleStorage.num_data_storage_units = True, 1
    tq.init(config)


def put(rows):
    """Put rows into the queue, with the fields of verl's agent loop."""
    keys, fields, _, _ = zip(*rows, strict=True)
    for row in fields:
        length = len(row["response_mask"])
        row["prompts"], row["responses"] = torch.ones(3).long(), torch.ones(length).long()
        row["input_ids"], row["position_ids"] = (
            torch.ones(3 + length).long(),
            torch.arange(3 + length),
        )
        row["reward_model"], row["rollout_log_probs"] = {"ground_truth": ""}, torch.zeros(length)
    tags = [{"seq_len": 3 + len(row["response_mask"])} for row in fields]
    data = list_of_dict_to_tensordict(list(fields))
    tq.kv_batch_put(keys=list(keys), fields=data, tags=tags, partition_id="train")
    return tq.KVBatchMeta(keys=list(keys), tags=tags, partition_id="train")


def recorded(batch, rows, file):
    """Return whether our record has every rollout of the batch, with rewards and advantage."""
    last = {key.rpartition("_")[0]: i for key, _, _, i in rows}
    found = {r.extra["uid"].rpartition("_")[0]: r for r in read_rollouts(file)}
    return set(found) == set(last) and all(
        dict(found[key].rewards) == {n: batch.infos()[i][n] for n in batch.names}
        and abs(found[key].advantage - batch.expected()[i]) < 1e-5
        and found[key].prompt == "3"
        for key, i in last.items()
    )


def main(folder):
    start()
    batch = paths.Batch(3, missing=True)
    rows = paths.v1_rows(batch, turns=True, padding=0)
    meta = upsample_batch_to_divisible_size(put(rows), MULTIPLE, eos_token_id=0)
    trainer = paths.v1_trainer()
    records = Path(f"{folder}-records")
    trainer.config = batch.config(gdpo_rollouts=str(records))
    trainer.tokenizer, trainer.global_steps = Tokenizer(), 1
    trainer._compute_advantage(meta, metrics={})
    fields = ["advantages", "response_mask"]
    data = tq.kv_batch_get(keys=meta.keys, partition_id="train", select_fields=fields)
    advantages, mask = (data[field].to_padded_tensor(0.0) for field in fields)
    wanted = torch.zeros(len(meta.keys), dtype=torch.float64)
    wanted[: len(rows)] = torch.tensor([batch.expected()[i] for *_, i in rows])
    trainer._init_dump_executor()
    trainer._log_rollout_data(meta, {}, folder)
    trainer._shutdown_dump_executor()
    dumped = {}
    for line in Path(folder, "1.jsonl").read_text().splitlines():
        entry = json.loads(line)
        dumped[entry["uid"]] = [entry[name] for name in batch.names]
    printed = {
        "path": "V1, real TransferQueue",
        "rollouts": len(batch.uids),
        "rows": len(rows),
        "padding": len(meta.keys) - len(rows),
        "difference": float((advantages - wanted[:, None] * mask).abs().max()),
        "dumped": all(
            dumped[key] == [batch.infos()[i][name] for name in batch.names] for key, _, _, i in rows
        ),
        "recorded": recorded(batch, rows, records / "step_000001.parquet"),
    }
    sys.stdout.write(json.dumps(printed) + "\n")
    tq.close()
    ray.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])
