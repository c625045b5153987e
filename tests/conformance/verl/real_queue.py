"""Runs parts of verl's default trainer on a real TransferQueue, with Ray on this machine's CPUs.

    python tests/conformance/verl/real_queue.py FOLDER

The script puts rows into the queue, as verl's agent loop does. verl computes advantages, puts them
back and writes its rollout files: of a batch that verl pads into FOLDER/padded, and of the known
rollouts into FOLDER/known. Our record of the padded batch is written to FOLDER/record. Prints one
line of JSON.
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
from known_rollouts import STEPS, WEIGHTS, known
from omegaconf import OmegaConf
from verl.trainer.ppo.padding_utils import upsample_batch_to_divisible_size
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from gdpo.rollouts import read_rollouts

MULTIPLE = 16


class Tokenizer:
    """Encodes one token per character; 0 is padding."""

    pad_token_id = 0

    def decode(self, ids, *, skip_special_tokens):
        return "".join(map(chr, filter(None, ids.tolist())))


def tokens(text):
    return torch.tensor(list(map(ord, text)))


def start():
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, object_store_memory=10**8)
    folder = Path(verl.__file__).parent / "trainer" / "config"
    with initialize_config_dir(str(folder), version_base=None):
        config = compose("ppo_trainer").transfer_queue
    OmegaConf.set_struct(config, False)
    config.enable, config.backend.SimpleStorage.num_data_storage_units = True, 1
    tq.init(config)


def put(keys, rows, prompts, responses):
    """Put rows into the queue, with the fields of verl's agent loop."""
    texts = map(tokens, prompts), map(tokens, responses)
    for row, prompt, response in zip(rows, *texts, strict=True):
        row |= {
            "prompts": prompt,
            "responses": response,
            "input_ids": torch.cat([prompt, response]),
            "position_ids": torch.arange(len(prompt) + len(response)),
            "rollout_log_probs": torch.zeros(len(response)),
            "reward_model": {"ground_truth": "4"},
        }
    tags = [{"seq_len": len(row["input_ids"])} for row in rows]
    data = list_of_dict_to_tensordict(rows)
    tq.kv_batch_put(keys=keys, fields=data, tags=tags, partition_id="train")
    return tq.KVBatchMeta(keys=keys, tags=tags, partition_id="train")


def compute_and_dump(meta, config, step, folder):
    trainer = paths.v1_trainer()
    trainer.config, trainer.tokenizer, trainer.global_steps = config, Tokenizer(), step
    trainer._compute_advantage(meta, metrics={})
    trainer._init_dump_executor()
    trainer._log_rollout_data(meta, {}, folder)
    trainer._shutdown_dump_executor()


def dump_known(folder):
    for step in STEPS:
        rollouts = known(step)
        rows = []
        for each in rollouts:
            rewarded = torch.zeros(len(each.completion))
            rewarded[-1] = each.total
            infos = {"reward_extra_info": {"score": each.total, **each.rewards}}
            mask = torch.ones(len(rewarded), dtype=torch.long)
            row = {"uid": f"prompt-{each.group}", "response_mask": mask, "rm_scores": rewarded}
            rows.append({**row, "extra_fields": infos})
        keys = [f"prompt-{each.group}_{each.sample}_0" for each in rollouts]
        texts = [each.prompt for each in rollouts], [each.completion for each in rollouts]
        meta = put(keys, rows, *texts)
        config = paths.configured(gdpo_reward_keys=list(WEIGHTS))
        compute_and_dump(meta, config, step, folder)
        tq.kv_clear(keys=meta.keys, partition_id="train")


def recorded(batch, rows, file):
    """Return whether our record has every rollout of the batch, with rewards and advantage."""
    last = {key.rpartition("_")[0]: i for key, _, _, i in rows}
    found = {r.extra["uid"].rpartition("_")[0]: r for r in read_rollouts(file)}
    return set(found) == set(last) and all(
        dict(found[key].rewards) == {n: batch.infos()[i][n] for n in batch.names}
        and abs(found[key].advantage - batch.expected()[i]) < 1e-5
        and found[key].prompt == "ask"
        for key, i in last.items()
    )


def dump_padded(folder, record):
    """Return what happened to a batch with several outputs of some rollouts, and with padding."""
    batch = paths.Batch(3, missing=True)
    rows = paths.v1_rows(batch, turns=True, padding=0)
    keys, fields, _, of = zip(*rows, strict=True)
    responses = ["a" * len(row["response_mask"]) for row in fields]
    meta = put(list(keys), list(fields), ["ask"] * len(rows), responses)
    meta = upsample_batch_to_divisible_size(meta, MULTIPLE, eos_token_id=0)
    compute_and_dump(meta, batch.config(gdpo_rollouts=str(record)), 1, folder)
    names = ["advantages", "response_mask"]
    data = tq.kv_batch_get(keys=meta.keys, partition_id="train", select_fields=names)
    advantages, mask = (data[name].to_padded_tensor(0.0) for name in names)
    wanted = torch.zeros(len(meta.keys), dtype=torch.float64)
    wanted[: len(rows)] = torch.tensor(batch.expected()[list(of)])
    entries = map(json.loads, Path(folder, "1.jsonl").read_text().splitlines())
    dumped = {entry["uid"]: [entry[name] for name in batch.names] for entry in entries}
    infos = batch.infos()
    tq.kv_clear(keys=meta.keys, partition_id="train")
    return {
        "rollouts": len(batch.uids),
        "rows": len(rows),
        "padding": len(meta.keys) - len(rows),
        "difference": float((advantages - wanted[:, None] * mask).abs().max()),
        "dumped": all(dumped[key] == [infos[i][n] for n in batch.names] for key, _, _, i in rows),
        "recorded": recorded(batch, rows, record / "step_000001.parquet"),
    }


def main(folder):
    start()
    printed = dump_padded(str(folder / "padded"), folder / "record")
    dump_known(str(folder / "known"))
    sys.stdout.write(json.dumps(printed) + "\n")
    tq.close()
    ray.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
