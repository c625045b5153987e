"""A chat server answers, now and then with an error, or never."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from gdpo.errors import ConfigError
from gdpo.evaluation import Sampling, Server, ServerError
from gdpo.tasks import Sample

PROBLEMS = [Sample([{"role": "user", "content": f"{i}?"}], {}) for i in range(3)]


@pytest.fixture
def serve(monkeypatch):
    """Starts a server whose answers a function makes: `(number, body) -> (code, answer)`."""
    monkeypatch.setattr("gdpo.evaluation._server.time.sleep", lambda _: None)
    servers, seen = [], []

    def start(answer):
        lock = threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with lock:
                    seen.append((self.path, body, self.headers.get("Authorization")))
                    number = len(seen)
                code, text = answer(number, body)
                self.send_response(code)
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_):
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}/v1", seen

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def said(body):
    content = f"you asked {body['messages'][0]['content']}"
    choice = {"message": {"content": content}, "finish_reason": "length"}
    return json.dumps({"choices": [choice], "usage": {"completion_tokens": 7}})


def test_each_sample_is_asked_for_with_a_seed_of_its_own(serve, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    url, seen = serve(lambda _, body: (200, said(body)))
    server = Server(url, "m", Sampling(2, 0.6, 0.95, 50), at_once=1)
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


def test_an_error_that_passes_is_tried_again(serve):
    url, seen = serve(lambda n, body: (500, "busy") if n % 2 else (200, said(body)))
    server = Server(url, "m", Sampling(), at_once=1)
    assert len(server.respond(PROBLEMS, seed=0, samples=1)) == 3
    assert len(seen) == 6


@pytest.mark.parametrize(
    ("answer", "message", "tries"),
    [
        ((500, "out of memory"), r"does not answer after 3 tries: 500 .*out of memory.*is kept", 3),
        ((400, "no such model"), "refuses the request: 400 .*no such model", 1),
        ((200, "<html>"), "does not answer after 3 tries: JSONDecodeError", 3),
        ((200, '{"choices": []}'), r"has no choices\[0\].message.content", 1),
    ],
)
def test_what_does_not_pass_is_told(answer, message, tries, serve):
    url, seen = serve(lambda *_: answer)
    with pytest.raises(ServerError, match=message):
        Server(url, "m", Sampling(), at_once=1, retries=2).respond(PROBLEMS[:1], seed=0, samples=1)
    assert len(seen) == tries


@pytest.mark.parametrize(
    ("code", "ending", "hinted"),
    [(404, "", True), (404, "/", True), (404, "/v1", False), (400, "", False)],
)
def test_an_address_that_lacks_its_end_is_told(serve, code, ending, hinted):
    url, _ = serve(lambda *_: (code, '{"detail":"Not Found"}'))
    address = url.removesuffix("/v1")
    with pytest.raises(ServerError) as error:
        Server(address + ending, "m", Sampling(), at_once=1).respond(PROBLEMS[:1], 0, 1)
    assert str(error.value).endswith(f": try --server {address}/v1") == hinted


def test_a_prompt_that_leaves_no_room_is_answered_with_nothing(serve):
    told = json.dumps({"message": "This model's maximum context length is 4096 tokens."})
    url, _ = serve(lambda *_: (400, told))
    [[response]] = Server(url, "m", Sampling(), at_once=1).respond(PROBLEMS[:1], 0, 1)
    assert (response.text, response.num_tokens, response.finish_reason) == ("", 0, "length")


def test_a_server_that_never_answers_is_told(serve):
    waiting = threading.Event()
    url, _ = serve(lambda *_: (waiting.wait(20), (200, ""))[1])
    server = Server(url, "m", Sampling(), deadline=0.2, retries=1)
    with pytest.raises(ServerError, match="does not answer after 2 tries: TimeoutError"):
        server.respond(PROBLEMS[:1], seed=0, samples=1)
    waiting.set()


def test_a_server_that_is_not_there_is_told(monkeypatch):
    monkeypatch.setattr("gdpo.evaluation._server.time.sleep", lambda _: None)
    server = Server("http://127.0.0.1:9/v1", "m", Sampling())
    with pytest.raises(ServerError, match="does not answer after 4 tries"):
        server.respond(PROBLEMS[:1], seed=0, samples=1)
    with pytest.raises(ConfigError, match="write the address with http"):
        Server("localhost:8000/v1", "m", Sampling())
