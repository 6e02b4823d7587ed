"""What a client of the daemon can ask of decoding, over the wire: choices, log-probabilities, penalties, ends."""

from __future__ import annotations

from draftd.core import ModePreference, SamplingParams
from draftd.v1 import inference_pb2 as pb
from tests.in_process_daemon import Served


def test_grpc_choices_and_logprobs_are_equal_in_both_decode_modes(served: Served) -> None:
    way = SamplingParams(20.0, seed=5, logit_bias=((101, 90.0), (255, -100.0)), frequency_penalty=2.0)
    texts = []
    for mode in (ModePreference.SPECULATIVE, ModePreference.AUTOREGRESSIVE):
        tokens: dict[int, list[int]] = {0: [], 1: []}
        ended = set[int]()
        for event in served.client.generate("hi", max_tokens=30, mode=mode, sampling=way, n=2, logprobs=3, echo=True):
            if event.HasField("chunk"):
                assert event.chunk.choice not in ended
                tokens[event.chunk.choice] += event.chunk.token_ids
                assert len(event.chunk.logprobs) == len(event.chunk.token_ids)
                assert all(len(one.top_ids) == len(one.top_logprobs) == 3 for one in event.chunk.logprobs)
            elif event.HasField("finished"):
                ended.add(event.finished.choice)
                assert event.finished.usage.output_tokens == len(tokens[event.finished.choice]) == 30
                assert event.finished.reason == pb.FINISH_REASON_LENGTH
        assert ended == {0, 1}
        texts.append(tokens)
    assert texts[0] == texts[1]
    assert texts[0][0] != texts[0][1]
    assert texts[0][0].count(101) > 2, "biased; the penalty lets others come"
    assert len(set(texts[0][0])) > 5


def test_grpc_answer_names_the_stop_token_that_ended_it(served: Served) -> None:
    whole = [token for event in served.client.generate("hi", max_tokens=9) for token in event.chunk.token_ids]
    *_, last = served.client.generate("hi", max_tokens=9, stop_token_ids=[whole[2]], min_tokens=0)
    assert last.finished.stop_token_id == whole[2]
    assert last.finished.reason == pb.FINISH_REASON_STOP
