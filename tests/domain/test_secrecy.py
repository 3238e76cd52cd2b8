"""Keys and tokens stay out of what people and collectors read."""

import pytest

from domain.secrecy import is_secret, shown_command


@pytest.mark.parametrize(
    "name", ["--api-key", "api_key", "HF_TOKEN", "AWS_SECRET", "db.password", "--client-secret", "TEMPORAL_API_KEY"]
)
def test_names_of_secrets(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize("name", ["--max-num-batched-tokens", "--tokenizer", "--ssl-keyfile", "--port", "monkey", "job_name"])
def test_other_names(name: str) -> None:
    assert not is_secret(name)


def test_a_command_is_shown_without_the_values_of_its_secrets() -> None:
    words = ["vllm", "serve", "M", "--api-key", "sk-1", "sk-2", "--port", "80", "--hf-token=hf-3", "--eplb-config", '{"a": 1}']
    shown = shown_command(words)
    assert shown == """vllm serve M --api-key *** *** --port 80 --hf-token=*** --eplb-config '{"a": 1}'"""
