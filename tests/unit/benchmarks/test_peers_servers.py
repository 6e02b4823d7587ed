"""The peer and the stretched pair: HTTP requests, streamed answers, and explanations of failures."""

from __future__ import annotations

import json
import random
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path

import pytest

from benchmarks.arms import Prompt
from benchmarks.peers.asking import AUTOREGRESSIVE, PEER, AskPeer, arms, arms_of
from benchmarks.peers.codec import Codec
from benchmarks.peers.drawn import long_prompt
from benchmarks.peers.load import closed_loop
from benchmarks.peers.mlx_server import Peer, peer
from benchmarks.peers.part import Pair
from benchmarks.peers.prefix import history
from benchmarks.peers.stretched import stretched
from benchmarks.run import load_prompts

NANO = files("draftd.models.nano")
PAIR = Pair(str(NANO / "target"), str(NANO / "draft"))


@pytest.fixture(scope="module")
def codec() -> Codec:
    return Codec(PAIR.model)


@pytest.fixture(scope="module")
def prompts() -> list[Prompt]:
    return load_prompts(PAIR.model, 3)


@contextmanager
def answering(*said: str, status: int = 200) -> Iterator[tuple[Peer, list[dict]]]:
    """Serves this text as the peer does: HTTP/1.0, until it closes. Yields the peer and the bodies sent to it."""
    bodies: list[dict] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(status)
            self.end_headers()
            self.wfile.write("".join(said).encode())

        def log_message(self, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield Peer(server.server_address[1], "the peer"), bodies
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def piece(text: str) -> str:
    return f"data: {json.dumps({'choices': [{'text': text}]})}\n\n"


def usage(prompt: int, completion: int, cached: int = 0) -> str:
    said = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
    return f"data: {json.dumps({'choices': [], 'usage': said})}\n\n"


def test_peer_client_records_streamed_text_token_counts_and_usage(codec, prompts) -> None:
    prompt, text = prompts[0], "    return list(set(data))"
    tokens = len(codec.tokens(text))
    said = [": keepalive 1/2\n\n", piece(text[:11]), piece(text[11:]), piece("")]
    with answering(*said, usage(len(prompt.tokens), tokens + 1, cached=5), "data: [DONE]\n\n") as (server, asked):
        stream = AskPeer(server, codec).ask(prompt, 64)
    assert stream.error == ""
    assert stream.text == text
    assert (stream.output_tokens, stream.prompt_tokens, stream.cached_tokens) == (tokens + 1, len(prompt.tokens), 5)
    assert sum(chunk.tokens for chunk in stream.chunks) == tokens + 1
    assert stream.asked <= stream.chunks[0].at <= stream.ended
    assert codec.tokens(asked[0]["prompt"]) == prompt.tokens
    assert (asked[0]["max_tokens"], asked[0]["temperature"], asked[0]["stream"]) == (64, 0.0, True)


def test_peer_client_caps_output_tokens_at_requested_maximum(codec, prompts) -> None:
    said = [piece("return"), usage(len(prompts[0].tokens), 2), "data: [DONE]\n\n"]
    with answering(*said) as (server, _):
        assert AskPeer(server, codec).ask(prompts[0], 1).output_tokens == 1


@pytest.mark.parametrize(
    ("said", "status", "error"),
    [
        ([usage(1, 1), "data: [DONE]\n\n"], 200, "the peer read 1 tokens, draftd"),
        ([piece("a")], 200, "ended before its usage"),
        (['{"error": "too long"}'], 404, "HTTP 404.*too long"),
    ],
)
def test_peer_client_records_server_failure_as_stream_error(codec, prompts, said, status, error) -> None:
    with answering(*said, status=status) as (server, _):
        stream = AskPeer(server, codec).ask(prompts[0], 4)

    assert re.search(error, stream.error)


def test_peer_client_records_refused_connection_as_stream_error(codec, prompts) -> None:
    with answering() as (server, _):
        pass
    assert "ConnectionRefusedError" in AskPeer(server, codec).ask(prompts[0], 4).error


def test_benchmark_prompt_text_retokenizes_to_the_same_ids_or_is_refused(codec, prompts) -> None:
    for prompt in prompts:
        assert codec.tokens(codec.text(prompt.tokens)) == prompt.tokens
    with pytest.raises(ValueError, match="other ids"):
        # Two tokens that are one when their text is read.
        codec.text(codec.tokens("re") + codec.tokens("turn"))


def test_generated_long_prompts_have_requested_length_and_distinct_beginnings(codec, prompts) -> None:

    draw = random.Random(1)
    long_prompts = [long_prompt(prompts, codec, 300, f"long-{i}", draw) for i in range(3)]
    assert [len(one.tokens) for one in long_prompts] == [300] * 3
    assert len({one.tokens[:60] for one in long_prompts}) == 3
    messages = history(prompts, codec, 200, draw)
    assert [one["role"] for one in messages[-2:]] == ["assistant", "user"]
    assert 200 <= len(codec.chat(messages)) < 400


def test_stretched_model_pair_has_longer_context_and_same_weights_file() -> None:
    with stretched(PAIR, 4096) as longer:
        for role in ("model", "draft"):
            made, source = Path(getattr(longer, role)), Path(getattr(PAIR, role))
            assert json.loads((made / "config.json").read_text())["max_position_embeddings"] == 4096
            assert (made / "model.safetensors").samefile(source / "model.safetensors")
            assert json.loads((source / "config.json").read_text())["max_position_embeddings"] == 1024
    assert not Path(longer.model).exists()


def test_endless_model_pair_replaces_end_token_with_unused_token(tmp_path) -> None:
    with stretched(PAIR, endless=True) as endless:
        assert Codec(endless.model)._wrapper.eos_token_ids == {2}
        config = Path(endless.model) / "tokenizer_config.json"
        configuration = json.loads(config.read_text())
        end = configuration["eos_token"]
        config.write_text(json.dumps(configuration | {"pad_token": end, "unk_token": "<unused>"}))
        with stretched(endless, endless=True) as again:
            assert json.loads((Path(again.model) / "tokenizer_config.json").read_text())["eos_token"] == "<unused>"
        config.write_text(json.dumps(configuration | dict.fromkeys(("pad_token", "unk_token", "bos_token"), end)))
        with pytest.raises(ValueError, match="none differs from the end token"), stretched(endless, endless=True):
            pass


def test_stretched_target_without_draft_model_has_no_draft_arm() -> None:
    with stretched(Pair(PAIR.model), 4096) as longer:
        assert longer.draft == ""
        assert arms_of(longer) == ("automatic", "autoregressive", "peer")


def test_peer_server_that_cannot_start_raises_error_naming_server(tmp_path) -> None:
    with pytest.raises(RuntimeError, match="mlx_lm.server"), peer(Pair(str(tmp_path), ""), draft_depth=None, batch=1):
        pass


@pytest.mark.slow
def test_draftd_and_peer_server_produce_same_greedy_texts(codec, prompts) -> None:
    """The real servers under a real load, small: the whole way from processes to ratios' ticks."""
    with arms(PAIR, codec, 2, (AUTOREGRESSIVE, PEER)) as askers:
        loads = {name: closed_loop(asker, prompts[:4], 2, 24) for name, asker in askers.items()}
    texts = {name: {s.prompt: (s.text, s.output_tokens) for s in load.streams} for name, load in loads.items()}
    assert texts[AUTOREGRESSIVE] == texts[PEER]
    assert all(load.tokens_per_second > 0 for load in loads.values())
