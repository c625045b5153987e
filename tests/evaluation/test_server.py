"""A chat server responds in full, in part, with an error, or never."""

import json
import os
import signal
import sys
import threading
import time
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from tests.checkout import python
from tests.refusals import config_error, missing_extra_error, refusal

from gdpo.lab.evaluation.responders import Sampling
from gdpo.lab.evaluation.server import ANSWERED, ServerError, ServerModel
from gdpo.lab.tasks import Problem

PROBLEMS = [Problem([{"role": "user", "content": f"{i}?"}], {}) for i in range(3)]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        code, answer = self.server.answer(self.path, body, self.headers.get("Authorization"))
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Retry-After-Ms", "1")
        if isinstance(answer, str):
            self.send_header("Content-Length", str(len(answer.encode())))
            self.end_headers()
            self.wfile.write(answer.encode())
        else:
            self.stream(answer)

    def stream(self, pieces):
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.close_connection = True
        for piece in pieces:
            if piece is None:
                return
            self.wfile.write(f"{len(piece.encode()):x}\r\n{piece}\r\n".encode())
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, *_):
        pass


class ChatServer(ThreadingHTTPServer):
    def handle_error(self, *_):
        """A client that has gone is what some tests are about."""


@pytest.fixture
def serve():
    """Start a server with a function for its replies: `(number, body) -> (code, reply)`.

    An answer that is no text is streamed, piece by piece; None in it breaks the connection.
    """
    servers, seen = [], []

    def start(answer):
        lock = threading.Lock()

        def note(*asked):
            with lock:
                seen.append(asked)
                number = len(seen)
            return answer(number, asked[1])

        server = ChatServer(("127.0.0.1", 0), Handler)
        server.answer = note
        servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}/v1", seen

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def said(body):
    content = f"you asked {body['messages'][0]['content']}"
    if body.get("stream"):
        return [event(content, "length"), USAGE, DONE]
    choice = {"message": {"content": content}, "finish_reason": "length"}
    return json.dumps({"choices": [choice], "usage": {"completion_tokens": 7}})


def event(text=None, reason=None, **more):
    delta = {"role": "assistant"} if text is None else {"content": text}
    choices = [] if "usage" in more else [{"delta": delta, "finish_reason": reason}]
    return f"data: {json.dumps({'choices': choices, **more})}\n\n"


WORDS = (event(), event("so "), event("it "))
USAGE = event(usage={"completion_tokens": 7})
DONE = "data: [DONE]\n\n"


def served(url, sampling=None, *, at_once=1, **options):
    return ServerModel(url, "m", sampling or Sampling(), at_once=at_once, **options)


def ask(url, **options):
    return served(url, **options).respond(PROBLEMS[:1], seed=0, samples=1)[0][0]


def server_error(match):
    return pytest.raises(ServerError, match=match)


def test_each_sample_has_its_own_seed(serve, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    url, seen = serve(lambda _, body: (200, said(body)))
    server = served(url, Sampling(2, 0.6, 0.95, 50))
    responses = server.respond(PROBLEMS, seed=10, samples=2)
    assert [[r.text for r in group] for group in responses] == [
        [f"you asked {i}?"] * 2 for i in range(3)
    ]
    assert {(r.num_tokens, r.finish_reason) for group in responses for r in group} == {
        (7, "length")
    }
    path, body, key = seen[0]
    assert (path, key) == ("/v1/chat/completions", "Bearer secret")
    assert body["model"] == "m"
    assert (body["temperature"], body["top_p"], body["max_tokens"]) == (0.6, 0.95, 50)
    assert [body["seed"] for _, body, _ in seen] == [10, 11] * 3


@pytest.mark.parametrize(
    ("content", "text"), [([{"type": "text", "text": "3"}, {"type": "thinking"}], "3"), (None, "")]
)
def test_a_content_of_parts_is_decoded(serve, content, text):
    choice = {"message": {"content": content}, "finish_reason": "stop"}
    body = json.dumps({"choices": [choice], "usage": {"completion_tokens": 7}})
    url, _ = serve(lambda *_: (200, body))
    assert ask(url).text == text


def test_a_temporary_error_is_retried(serve):
    url, seen = serve(lambda n, body: (500, "busy") if n % 2 else (200, said(body)))
    server = served(url)
    assert len(server.respond(PROBLEMS, seed=0, samples=1)) == 3
    assert len(seen) == 6


@pytest.mark.parametrize(
    ("answer", "message", "tries"),
    [
        ((500, "out of memory"), r"3 tries: .*out of memory", 3),
        ((400, "no such model"), "refuses .*400.*no such model$", 1),
        ((401, "no such key"), "refuses .*401.*no such key.*OPENAI_API_KEY", 1),
        ((404, "no such model"), "refuses .*404.*no such model$", 1),
        ((200, "<html>"), "not JSON", 2),
        ((200, '{"choices": []}'), r"choices\[0\].message.content", 2),
    ],
)
def test_a_permanent_error_is_reported(answer, message, tries, serve):
    url, seen = serve(lambda *_: answer)
    with server_error(message):
        ask(url, retries=2)
    assert len(seen) == tries


@pytest.mark.parametrize("ending", ["", "/", "/v1", "/v1/"])
def test_v1_is_added_to_an_address_without_a_path(serve, ending):
    url, seen = serve(lambda _, body: (200, said(body)))
    ask(url.removesuffix("/v1") + ending)
    assert seen[0][0] == "/v1/chat/completions"


@pytest.mark.parametrize(
    ("code", "path", "hinted"), [(404, "/api", True), (404, "/v1", False), (400, "/api", False)]
)
def test_an_address_without_v1_is_reported(serve, code, path, hinted):
    url, seen = serve(lambda *_: (code, '{"detail":"Not Found"}'))
    address = url.removesuffix("/v1") + path
    said = refusal(ask, address, error=ServerError)
    assert said.endswith(f"--server {address}/v1") == hinted
    assert seen[0][0] == f"{path}/chat/completions"


@pytest.mark.parametrize(
    "message",
    [
        "This model's maximum context length is 4096 tokens.",
        "the request exceeds the available context size, try increasing it",
    ],
)
@pytest.mark.parametrize("streamed", [True, False])
def test_a_prompt_that_leaves_no_room_gets_an_empty_response(serve, message, streamed, caplog):
    error = {"error": {"code": 400, "message": message}}
    whole, within = (400, json.dumps(error)), (200, [f"data: {json.dumps(error)}\n\n", DONE])
    url, _ = serve(lambda *_: within if streamed else whole)
    server = served(url, Sampling(2, 1.0))
    for response in server.respond(PROBLEMS[:1], 0, 2)[0]:
        assert (response.text, response.num_tokens, response.finish_reason) == ("", 0, "length")
    [line] = caplog.messages
    assert f"{url} has no room" in line
    assert message in line


@pytest.mark.parametrize("begun", [(), WORDS])
def test_a_silence_is_reported_and_the_request_not_sent_again(serve, begun):
    waiting = threading.Event()

    def pieces():
        yield from begun
        waiting.wait(60)

    url, seen = serve(lambda *_: (200, pieces()))
    __import__("openai.resources.chat")  # which the client imports within the deadline
    with server_error(r"0\.5 s.*--deadline"):
        ask(url, deadline=0.5)
    waiting.set()
    assert len(seen) == 1


def test_a_response_is_streamed(serve):
    pieces = [": ping\n\n", *WORDS, event("is", "length"), USAGE, DONE]
    url, seen = serve(lambda *_: (200, pieces))
    response = ask(url)
    assert (response.text, response.num_tokens) == ("so it is", 7)
    assert response.finish_reason == "length"
    assert seen[0][1]["stream"] is True
    assert seen[0][1]["stream_options"] == {"include_usage": True}


@pytest.mark.parametrize(
    ("pieces", "tries", "message"),
    [
        ([None], 2, "interrupted .*Connection error"),
        ([*WORDS, None], 2, "interrupted .*Connection error"),
        ([*WORDS, USAGE, None], 2, "interrupted .*Connection error"),
        ([*WORDS], 2, "interrupted .*the connection was closed"),
        ([*WORDS, "data: {\n\n"], 2, "interrupted .*property name"),
        ([*WORDS, 'data: {"error": {"code": 503}}\n\n'], 2, "interrupted .*503"),
        ([*WORDS, 'data: {"error": "lost"}\n\n'], 2, "interrupted .*lost"),
        (["data: 7\n\n"], 1, "chat.completion.chunk"),
    ],
)
def test_a_response_that_broke_off_is_requested_once_more(serve, pieces, tries, message):
    url, seen = serve(lambda *_: (200, pieces))
    with server_error(message):
        ask(url)
    assert len(seen) == tries


@pytest.mark.parametrize(
    ("answer", "warning"),
    [
        ((200, [*WORDS, event("is", "stop"), DONE]), "streams without reporting the token count"),
        ((200, "{}"), "streams without reporting the token count"),
        ((422, "extra field not allowed: stream_options"), "does not stream: 422 extra field"),
    ],
)
def test_a_server_that_cannot_stream_with_a_count_is_asked_without(serve, answer, warning, caplog):
    url, seen = serve(lambda _, body: answer if "stream" in body else (200, said(body)))
    responses = served(url).respond(PROBLEMS, 0, 1)
    assert [group[0].num_tokens for group in responses] == [7] * 3
    assert ["stream" in body for _, body, _ in seen] == [True, False, False, False]
    assert [warning in line for line in caplog.messages] == [True]


def test_saved_responses_are_not_requested_again(serve, tmp_path):
    url, seen = serve(lambda n, body: (400, "no") if n == 4 else (200, said(body)))
    server = served(url, Sampling(2, 1.0), kept=tmp_path)
    whole = replace(server, kept=None)
    with server_error("refuses"):
        server.respond(PROBLEMS, seed=0, samples=2)
    kept = (tmp_path / ANSWERED).read_text()
    (tmp_path / ANSWERED).write_text(kept[:-5])  # killed while it wrote the third
    heard = []
    responses = server.respond(PROBLEMS, 0, 2, heard.append)
    assert len(seen) == 4 + 4
    assert sum(heard) == 6
    assert server.respond(PROBLEMS, 0, 2) == responses == whole.respond(PROBLEMS, 0, 2)
    assert len(seen) == 8 + 6


def test_the_default_deadline_covers_a_long_response_and_numbers_have_bounds():
    assert served("http://a", Sampling(max_tokens=1024)).silence == 600
    assert served("http://a", Sampling(max_tokens=32_000)).silence == 3200
    assert served("http://a", Sampling(max_tokens=32_000), deadline=5).silence == 5
    with config_error(r"--deadline .*got 0"):
        served("http://a", deadline=0)
    with config_error(r"--at-once .*got 0"):
        served("http://a", at_once=0)


def test_after_a_failure_running_requests_finish_and_no_other_starts(serve):
    failed = threading.Event()

    def answer(_, body):
        if body["messages"][0]["content"] == "0?":
            failed.set()
            return 400, "lost"
        failed.wait(20)
        time.sleep(0.1)  # longer than the error needs
        return 200, said(body)

    url, seen = serve(answer)
    heard = []
    with server_error("lost"):
        served(url, at_once=2).respond(PROBLEMS, 0, 1, heard.append)
    assert (len(seen), heard) == (2, [1])


INTERRUPTED = """
import os, sys
from gdpo.lab.evaluation.responders import Sampling
from gdpo.lab.evaluation.server import ServerModel
from gdpo.lab.tasks import Problem

model = ServerModel(sys.argv[1], str(os.getpid()), Sampling())
try:
    model.respond([Problem([], {})] * 3, seed=0, samples=1)
except KeyboardInterrupt:
    print("stopped")
"""


def test_an_interruption_does_not_wait_for_requests(serve):
    waiting = threading.Event()

    def interrupt(number, body):
        if number == 3:
            os.kill(int(body["model"]), signal.SIGINT)
        waiting.wait(300)

    url, _ = serve(interrupt)
    done = python("-c", INTERRUPTED, url, timeout=200)
    waiting.set()
    assert (done.returncode, done.stdout) == (0, "stopped\n")


def test_a_server_that_does_not_exist_is_reported(monkeypatch):
    server = served("http://127.0.0.1:9/v1", retries=1)
    with server_error(r"2 tries: .*start the server"):
        server.respond(PROBLEMS[:1], seed=0, samples=1)
    with config_error("--server localhost:8000/v1"):
        served("localhost:8000/v1")
    monkeypatch.setitem(sys.modules, "openai", None)
    with missing_extra_error(r"pip install '\.\[server\]'"):
        served("http://127.0.0.1:9/v1")
