"""From SmolLM2's GGUF file to a folder that any transformers program loads. Imports torch and transformers."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import torch
from gguf import GGUFReader, TokenType
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from pagedlab.model.quiet import quiet_transformers

# The GGUF file says 9.999999747378752e-06, which is 1e-5 in fp32.
_RMS_NORM_EPS = 1e-5
_BOS, _EOS, _PAD = 1, 2, 2


def convert(gguf: Path, folder: Path) -> None:
    """Write config.json, generation_config.json, model.safetensors (fp32), tokenizer.json and tokenizer_config.json.

    folder: exists and is empty. Takes about 20 seconds and 2 GB of memory.
    """
    with quiet_transformers():
        dequantised = dequantise(gguf)
        config = dequantised.config.to_dict()
        # With quantization_config the model counts as quantised, and refuses to be saved.
        del config["quantization_config"], config["_model_name_or_path"]
        config |= {
            "rms_norm_eps": _RMS_NORM_EPS,
            "bos_token_id": _BOS,
            "eos_token_id": _EOS,
            "pad_token_id": _PAD,
        }
        # Built without memory: its parameters become the dequantised ones.
        with torch.device("meta"):
            model = LlamaForCausalLM(LlamaConfig(**config))
        model.load_state_dict(dequantised.state_dict(), assign=True)
        model.tie_weights()
        model.generation_config = GenerationConfig(bos_token_id=_BOS, eos_token_id=_EOS, pad_token_id=_PAD)
        model.save_pretrained(folder)
    # safetensors makes its file readable by its owner only; a shared cache is for everybody.
    (folder / "model.safetensors").chmod((folder / "config.json").stat().st_mode)
    _write_tokenizer(GGUFReader(gguf), folder)


def dequantise(gguf: Path) -> PreTrainedModel:
    """The model in the GGUF file as transformers reads it, all tensors in fp32."""
    # Its progress bar is not one of those that transformers can switch off.
    with redirect_stderr(io.StringIO()):
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            gguf.parent, gguf_file=gguf.name, dtype=torch.float32, local_files_only=True, trust_remote_code=False
        )
    return model


def _write_tokenizer(reader: GGUFReader, folder: Path) -> None:
    def field(name: str) -> Any:
        return reader.fields[f"tokenizer.{name}"].contents()

    tokens: list[str] = field("ggml.tokens")
    merges = [tuple(merge.split(" ")) for merge in field("ggml.merges")]
    tokenizer = Tokenizer(models.BPE(vocab={token: id_ for id_, token in enumerate(tokens)}, merges=merges))
    # What `tokenizer.ggml.pre=smollm` means, which transformers ignores: every digit is a token of its own.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds: list[int] = field("ggml.token_type")
    control = [token for token, kind in zip(tokens, kinds, strict=True) if kind == TokenType.CONTROL]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    tokenizer.save(str(folder / "tokenizer.json"))

    settings = {
        # Of the tokenizer classes of transformers, the one that takes tokenizer.json as it is.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[_BOS],
        "eos_token": tokens[_EOS],
        "pad_token": tokens[_PAD],
        "unk_token": tokens[field("ggml.unknown_token_id")],
        "model_max_length": reader.fields["llama.context_length"].contents(),
        "clean_up_tokenization_spaces": False,
        "chat_template": field("chat_template"),
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
