"""Write a tiny random Qwen2-VL checkpoint: the real architecture and tokenizer classes, 2 layers, 270 tokens.

usage: make_tiny_vlm.py OUTPUT_DIR      (with the Python of the engine environment)

The weights are drawn wider than a training recipe would (`SPREAD`): with the usual 0.02 every answer collapses into one
repeated token, with 0.25 each picture of a prompt changes the answer, so that a wrong picture cannot go unnoticed.
Only printable ASCII and the end of the answer can be generated.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]
from tokenizers import (  # type: ignore[import-not-found, unused-ignore]
    AddedToken,
    Tokenizer,
    decoders,
    models,
    pre_tokenizers,
)
from transformers import (  # type: ignore[import-not-found, unused-ignore]
    PreTrainedTokenizerFast,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
)

SPREAD = 0.25
MERGES = [("Ġ", "t"), ("h", "e"), ("Ġt", "he"), ("i", "n"), ("Ġ", "a"), ("e", "r")]
SPECIAL = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
]
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for c in m['content'] %}"
    "{% if c['type'] in ('image', 'image_url') %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif c['type'] in ('video', 'video_url') %}<|vision_start|><|video_pad|><|vision_end|>"
    "{% elif 'text' in c %}{{ c['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
IMAGE_PROCESSOR = {
    "min_pixels": 3136,
    "max_pixels": 1003520,  # an encoder boots by encoding the largest picture: with the usual 12845056 for minutes
    "patch_size": 14,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
    "image_processor_type": "Qwen2VLImageProcessor",
    "processor_class": "Qwen2VLProcessor",
}


def vocabulary() -> dict[str, int]:
    """Byte-level alphabet, then the merged pieces."""
    pieces = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *(a + b for a, b in MERGES)]
    return {piece: i for i, piece in enumerate(pieces)}


def write_tokenizer(out: Path) -> dict[str, int]:
    """Save the tokenizer and return the ids of the special tokens."""
    vocab = vocabulary()
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=MERGES))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in SPECIAL])
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=SPECIAL[1:],
        model_max_length=32768,
        chat_template=CHAT_TEMPLATE,
    ).save_pretrained(out)
    edit_json(out / "tokenizer_config.json", lambda config: config.update(tokenizer_class="Qwen2TokenizerFast"))
    (out / "vocab.json").write_text(json.dumps(vocab))
    (out / "merges.txt").write_text("\n".join(["#version: 0.2", *(f"{a} {b}" for a, b in MERGES)]))
    (out / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    return {s: tokenizer.token_to_id(s) for s in SPECIAL}


def model_config(ids: dict[str, int]) -> Any:
    rope = {"rope_type": "default", "type": "mrope", "mrope_section": [8, 12, 12], "rope_theta": 10000.0}
    text = {
        "vocab_size": max(ids.values()) + 1,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "max_position_embeddings": 32768,
        "rope_parameters": rope,
        "bos_token_id": ids["<|endoftext|>"],
        "eos_token_id": ids["<|im_end|>"],
        "tie_word_embeddings": False,
        "initializer_range": SPREAD,
    }
    vision = {
        "depth": 2,
        "embed_dim": 64,
        "hidden_size": 128,
        "num_heads": 2,
        "mlp_ratio": 2,
        "in_channels": 3,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "initializer_range": SPREAD,
    }
    return Qwen2VLConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        vision_token_id=ids["<|vision_pad|>"],
    )


def printable(vocab: dict[str, int]) -> list[int]:
    """Ids of the tokens that are printable ASCII (Ġ stands for a space)."""
    return [i for piece, i in vocab.items() if all(c == "Ġ" or " " < c <= "~" for c in piece)]


def write_model(out: Path, ids: dict[str, int]) -> None:
    torch.manual_seed(0)
    model = Qwen2VLForConditionalGeneration(model_config(ids))
    allowed = [*printable(vocabulary()), ids["<|im_end|>"]]
    mask = torch.zeros(model.lm_head.weight.shape[0], 1)
    mask[allowed] = 1
    model.lm_head.weight.data.mul_(mask)
    model.generation_config.eos_token_id = ids["<|im_end|>"]
    model.generation_config.pad_token_id = ids["<|endoftext|>"]
    model.to(torch.bfloat16).save_pretrained(out)
    (out / "preprocessor_config.json").write_text(json.dumps(IMAGE_PROCESSOR, indent=1))
    # SGLang reads the number of channels under this name.
    edit_json(out / "config.json", lambda config: config["vision_config"].update(in_chans=3))


def edit_json(path: Path, edit: Any) -> None:
    content = json.loads(path.read_text())
    edit(content)
    path.write_text(json.dumps(content, indent=1))


def main() -> None:
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    write_model(out, write_tokenizer(out))


if __name__ == "__main__":
    main()
