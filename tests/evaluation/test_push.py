"""A run is uploaded to the Hub: the files that are sent, those that are not, and the errors.

The Hub is a local server with the part of its API that an upload needs.
"""

import base64
import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
import yaml

from gdpo.errors import ConfigError, DataError
from gdpo.evaluation.push import uploads
from gdpo.recipes.recipe import DataConfig, Recipe, RewardConfig
from gdpo.runs.directory import RunDirectory
from gdpo.runs.summary import readme

RECIPE = Recipe(
    task="gsm8k",
    model="Qwen/Qwen2.5-1.5B-Instruct",
    data=DataConfig(source="openai/gsm8k"),
    rewards=(RewardConfig(name="correctness"), RewardConfig(name="format", weight=0.5)),
)
FACTS = {"seed": 3, "gdpo": "0", "python": "3.11", "packages": {"trl": "1"}, "git": None}


@pytest.fixture
def run(tmp_path):
    run = RunDirectory(tmp_path / "run")
    for folder in ("model", "checkpoints/checkpoint-3", "rollouts", "evaluation/gsm8k"):
        (run.path / folder).mkdir(parents=True)
    run.recipe.write_text(RECIPE.to_yaml())
    run.readme.write_text(readme(RECIPE, FACTS, (), steps=3, has_curves=True))
    for path in (
        *("model/config.json", "model/model.safetensors", "model/README.md", "metrics.jsonl"),
        *("curves.png", "environment.json", "checkpoints/checkpoint-3/model.safetensors"),
        *("rollouts/step_000001.parquet", "evaluation/results.json"),
        *("evaluation/settings.json", "evaluation/gsm8k/problems_000000.parquet"),
    ):
        (run.path / path).write_text(path)
    return run


SENT = [
    *("README.md", "config.json", "model.safetensors", "curves.png", "recipe.yaml"),
    *("metrics.jsonl", "evaluation/results.json", "evaluation/settings.json"),
]


class Hub(BaseHTTPRequestHandler):
    """Accepts an upload. Replies with `answers` for the paths in it."""

    asked: list  # of (path, body)
    answers: dict

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.asked.append((self.path, self.headers.get("Authorization"), body))
        status, said = self.answers.get(self.path, (200, None))
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(said or self._answer(body)).encode())

    def _answer(self, body):
        if self.path == "/api/repos/create":
            return {"url": f"{self.address}/ann/maths", "name": "ann/maths"}
        if self.path.endswith("/preupload/main"):
            files = json.loads(body)["files"]
            return {
                "files": [
                    {"path": f["path"], "uploadMode": "regular", "shouldIgnore": False}
                    for f in files
                ]
            }
        if self.path == "/api/validate-yaml":
            return {"errors": [], "warnings": []}
        return {
            "commitUrl": f"{self.address}/ann/maths/commit/1",
            "commitOid": "1",
            "hookOutput": "",
        }

    def log_message(self, *_):
        pass


@pytest.fixture
def hub():
    handler = type("Answering", (Hub,), {"asked": [], "answers": {}})
    server = HTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    handler.address = f"http://127.0.0.1:{server.server_port}"
    yield handler
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_help_names_the_metrics_that_are_sent():
    command = [sys.executable, "-m", "gdpo", "push", "--help"]
    assert "metrics.jsonl" in subprocess.run(command, capture_output=True, text=True).stdout


def gdpo_push(run, *arguments, endpoint="http://127.0.0.1:9", token="hf_test", home):
    environment = {
        **os.environ,
        "HF_ENDPOINT": endpoint,
        "HF_HUB_OFFLINE": "0",
        "HF_HOME": str(home),
        "NO_PROXY": "127.0.0.1",
    }
    environment.pop("HF_TOKEN", None)
    if token:
        environment["HF_TOKEN"] = token
    return subprocess.run(
        [sys.executable, "-m", "gdpo", "push", str(run.path), *arguments],
        capture_output=True,
        text=True,
        env=environment,
    )


def test_model_and_card_are_sent_and_nothing_else(run, hub, tmp_path):
    done = gdpo_push(run, "ann/maths", endpoint=hub.address, home=tmp_path / "home")
    assert done.returncode == 0, done.stderr
    asked = {path: body for path, _, body in hub.asked}
    assert all(key == "Bearer hf_test" for _, key, _ in hub.asked)
    created = json.loads(asked["/api/repos/create"])
    assert (created["organization"], created["name"]) == ("ann", "maths")
    assert created.get("private") or created["visibility"] == "private"
    lines = [json.loads(line) for line in asked["/api/models/ann/maths/commit/main"].splitlines()]
    files = {
        line["value"]["path"]: base64.b64decode(line["value"]["content"]).decode()
        for line in lines
        if line["key"] == "file"
    }
    assert list(files) == SENT
    assert files["config.json"] == "model/config.json"
    assert 'from_pretrained("ann/maths")' in files["README.md"]
    assert str(RECIPE.run_dir) not in files["README.md"].partition("## Recipe")[0]
    lines = done.stdout.splitlines()
    assert "ann/maths (private" in lines[0]
    assert [line.split()[0] for line in lines[1:-1]] == SENT


def test_rollouts_are_sent_on_request(run):
    paths = [each.path for each in uploads(run, rollouts=True)]
    assert paths == [*SENT, "rollouts/step_000001.parquet"]


def test_the_card_has_a_head_that_the_hub_reads(run):
    _, head, text = run.readme.read_text().split("---\n", 2)
    assert yaml.safe_load(head) == {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "base_model": "Qwen/Qwen2.5-1.5B-Instruct",
        "datasets": ["openai/gsm8k"],
        "tags": ["gdpo", "trl", "multi-reward", "gsm8k"],
    }
    assert text.lstrip().startswith("# gsm8k-gdpo\n")


def test_a_folder_that_is_not_a_finished_run_is_refused(run, tmp_path):
    with pytest.raises(ConfigError, match=r"recipe\.yaml"):
        uploads(RunDirectory(tmp_path))
    run.readme.unlink()
    with pytest.raises(ConfigError, match="--resume"):
        uploads(run)


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("recipe.yaml", "trainer:\n  hub_token: abc\n"),
        ("README.md", f"hf_{'a' * 34}"),
        ("metrics.jsonl", f'{{"a": "hf_{"b" * 34}"}}'),
    ],
)
def test_a_token_is_never_uploaded(run, file, text):
    (run.path / file).write_text(text)
    with pytest.raises(DataError, match=file):
        uploads(run)


@pytest.mark.parametrize(
    ("arguments", "answers", "message"),
    [
        (
            {"token": None},
            {},
            "`hf auth login`",
        ),
        ({"name": "maths"}, {}, "OWNER/NAME"),
        ({}, {"/api/repos/create": (403, {"error": "no"})}, "ann/maths: 403"),
        ({}, {"/api/repos/create": (401, {"error": "no"})}, "`hf auth login`"),
        ({"endpoint": "http://127.0.0.1:9"}, {}, "HF_ENDPOINT"),
    ],
)
def test_what_stops_an_upload_is_reported(run, hub, tmp_path, arguments, answers, message):
    hub.answers = answers
    given = {"endpoint": hub.address, "home": tmp_path / "home", **arguments}
    done = gdpo_push(run, given.pop("name", "ann/maths"), **given)
    assert done.returncode == 2
    assert message in done.stderr.replace("\n", " ")
    assert "Traceback" not in done.stderr
    assert not any("commit" in path for path, *_ in hub.asked)


def test_a_dry_run_only_lists(run, tmp_path):
    done = gdpo_push(run, "ann/maths", "--dry-run", token=None, home=tmp_path / "home")
    assert done.returncode == 0
    assert [line.split()[0] for line in done.stdout.splitlines()[1:]] == SENT


def test_a_dry_run_refuses_a_name_without_its_owner(run, tmp_path):
    done = gdpo_push(run, "maths", "--dry-run", token=None, home=tmp_path / "home")
    assert done.returncode == 2
    assert "OWNER/NAME" in done.stderr
