#!/usr/bin/env python3
"""Holds the server to OpenAI's own client: openai_client.py PROGRAM, with the package `openai`, of .ci/requirements.txt."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Literal

import openai
import pydantic

KEY = "a key"
ASK = [{"role": "user", "content": "What is ownership?"}]


def start(program):
    """The server, and its address."""
    environment = dict(os.environ, KILN_DEVICE="emulator", KILN_API_KEY=KEY)
    server = subprocess.Popen([program, "--listen", "127.0.0.1:0"], stderr=subprocess.PIPE, text=True, env=environment)
    for line in server.stderr:
        if line.startswith("listening on "):
            return server, line.split()[-1]
    sys.exit("the server has ended")


def refused(status, ask):
    try:
        ask()
    except openai.APIStatusError as error:
        assert type(error) is status, error
        return error
    raise AssertionError(f"{status} was expected")


def check(client, url):
    (model,) = client.models.list()
    name = model.id
    assert client.models.retrieve(name).id == name

    def chat(**more):
        return client.chat.completions.create(**{"model": name, "messages": ASK, "max_tokens": 8, "temperature": 0, **more})

    answer = chat()
    (choice,) = answer.choices
    text = choice.message.content
    assert choice.message.role == "assistant" and choice.finish_reason == "length" and text, answer
    assert answer.usage.completion_tokens == 8 and answer.usage.total_tokens == 8 + answer.usage.prompt_tokens

    chunks = list(chat(stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == text
    assert chunks[-2].choices[0].finish_reason == "length" and chunks[-1].usage == answer.usage.model_copy(
        update={"prompt_tokens_details": chunks[-1].usage.prompt_tokens_details}
    )

    stop = text[len(text) // 2 :][:3]
    (stopped,) = chat(stop=[stop]).choices
    assert stopped.message.content == text[: text.index(stop)] and stopped.finish_reason == "stop"

    drawn = [chat(temperature=1.3, seed=seed).choices[0].message.content for seed in (5, 5, 6)]
    assert drawn[0] == drawn[1] != drawn[2], drawn

    told = chat(logprobs=True, top_logprobs=3).choices[0].logprobs.content
    assert "".join(token.token for token in told) == text
    for token in told:
        assert len(token.top_logprobs) == 3 and token.logprob == token.top_logprobs[0].logprob <= 0
        assert bytes(token.bytes).decode() == token.token

    plain = client.completions.create(model=name, prompt="The", max_tokens=4, temperature=0, logprobs=1)
    assert "".join(plain.choices[0].logprobs.tokens) == plain.choices[0].text and plain.object == "text_completion"
    pieces = client.completions.create(model=name, prompt="The", max_tokens=4, temperature=0, stream=True)
    assert "".join(chunk.choices[0].text for chunk in pieces) == plain.choices[0].text

    with chat(max_tokens=2000, stream=True, logit_bias={"2042": -100}) as stream:
        next(iter(stream))
    # It was left in its middle; others are answered.
    with ThreadPoolExecutor(8) as clients:
        for other in clients.map(lambda _: chat(), range(8)):
            assert other.choices[0].message.content == text

    assert refused(openai.BadRequestError, lambda: chat(temperature=-1)).param == "temperature"
    assert refused(openai.BadRequestError, lambda: chat(n=2)).code == "unsupported"
    assert refused(openai.NotFoundError, lambda: chat(model="gpt-4")).code == "model_not_found"
    long = [{"role": "user", "content": "word " * 5000}]
    assert refused(openai.BadRequestError, lambda: chat(messages=long)).code == "context_length_exceeded"
    stranger = openai.OpenAI(base_url=f"{url}/v1", api_key="another", max_retries=0)
    assert refused(openai.AuthenticationError, lambda: stranger.models.list()).code == "invalid_api_key"

    class Crate(pydantic.BaseModel):
        name: Annotated[str, pydantic.Field(max_length=8)]
        licence: Literal["MIT", "Apache-2.0"]

    ask = dict(model=name, messages=ASK, max_tokens=100, temperature=0)
    found = client.chat.completions.parse(**ask, response_format=Crate).choices[0].message.parsed
    assert isinstance(found, Crate), found
    chat(response_format={"type": "json_object"}, max_tokens=4)
    wrong = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "strong"}}}
    assert refused(openai.BadRequestError, lambda: chat(response_format=wrong)).param == "response_format"


def main():
    server, url = start(sys.argv[1])
    try:
        check(openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0, timeout=120), url)
        server.terminate()
        assert server.wait(20) == 0
    finally:
        server.kill()
    print(f"openai {openai.__version__}: models, chat, stream, stop, seed, logprobs, completions, schemas, errors")


if __name__ == "__main__":
    main()
