"""Writes the tiny test models: random ones that load at once and prefill thousands of tokens per second.

Tests of slots and caches need a real llama-server, but no sense in its answers. What they need is that

* answers depend on tokens all over the prompt, so that another conversation's KV cache shows;
* answers are plain text, never half a UTF-8 sequence (llama-server answers 500 to that);
* an answer, tokenised anew, gives the very tokens that were sampled, so that a slot's contents are known.

The last two hold by construction: one hidden dimension is constant and pushes down the logits of all tokens but the
capitals A to Z, and no merge of the vocabulary contains a capital.

One has full attention (architecture "llama"), one a sliding window in five of six layers ("gemma3"), and one a layer
that keeps a state which can't be taken back ("lfm2", a hybrid). For the first there are also a projector, so that it
takes images, and LoRA adapters; they make no sense either.
"""

from __future__ import annotations

import hashlib
import itertools
import sys
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Literal
from typing import TypeAlias

import gguf
import numpy as np
import numpy.typing as npt

WORDS = Path(__file__).with_name("tiny_words.txt")
SEED = 8
CONTEXT = 262_144  # tokens that the model claims to be trained for
WIDTH = 64  # hidden dimensions
HEAD = 16  # dimensions of the only attention head: 64 bytes of KV cache a token and layer
FEED_FORWARD = 128
LAYERS = 1
WINDOWED_LAYERS = 6  # every sixth layer of a gemma3 model has full attention
HYBRID_LAYERS = 2  # one with attention, one with a short convolution over the latest tokens
CONVOLUTION = 3  # tokens
SHARPNESS = 3.0  # of the attention: each answer token depends on a few tokens of the prompt
IMAGE = 28  # pixels of an image's side, once the server has scaled it
PATCH = 14  # pixels of a patch's side: an image takes four tokens
LEAST_BLOCKS = 2  # of the projector: it leaves the last one out
VISION_WIDTH = 32  # hidden dimensions of the projector
RANK = 2  # of the adapters
PUSH = 200.0  # by how much the logits of all but A to Z are pushed down

Kind: TypeAlias = Literal["llama", "gemma3", "lfm2"]  # architectures

SPECIALS = ("<s>", "<|im_start|>", "<|im_end|>", "<|endoftext|>")
GAPS = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")  # llama.cpp knows them by their texts
CAPITALS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

CHAT_TEMPLATE = """\
{{- bos_token }}
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {{- '# Tools\\n\\nYou may call these functions:\\n<tools>' }}
    {%- for tool in tools %}
        {{- '\\n' + (tool | tojson) }}
    {%- endfor %}
    {{- '\\n</tools>\\n\\nTo call one, answer with its name and arguments as JSON:\\n' }}
    {{- '<tool_call>\\n{"name": <name>, "arguments": <arguments>}\\n</tool_call><|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {{- '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' }}
        {%- if message.content %}
            {{- message.content }}
        {%- endif %}
        {%- for call in message.tool_calls or [] %}
            {{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
            {%- if call.function.arguments is string %}
                {{- call.function.arguments }}
            {%- else %}
                {{- call.function.arguments | tojson }}
            {%- endif %}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""


def byte_symbols() -> list[str]:
    """The printable stand-in of each of the 256 bytes, as GPT-2's byte-level BPE defines them."""
    plain = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    stand_ins = itertools.count(256)
    return [chr(byte) if byte in plain else chr(next(stand_ins)) for byte in range(256)]


def learn_merges(words: list[str]) -> list[tuple[str, str]]:
    """Byte-pair merges, most frequent pair first, until each of `words` (strings of byte symbols) is one token.

    Earlier words weigh more. Ties go to the pair that sorts first, so equal words give equal merges.
    """
    weighted = [(list(word), 1 + 1000 // (place + 1)) for place, word in enumerate(words)]
    merges: list[tuple[str, str]] = []
    while True:
        pairs: Counter[tuple[str, str]] = Counter()
        for parts, weight in weighted:
            for pair in itertools.pairwise(parts):
                pairs[pair] += weight
        if not pairs:
            return merges
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        for parts, _ in weighted:
            place = 0
            while place < len(parts) - 1:
                if (parts[place], parts[place + 1]) == best:
                    parts[place : place + 2] = ["".join(best)]
                place += 1
        weighted = [(parts, weight) for parts, weight in weighted if len(parts) > 1]


@cache
def vocabulary() -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """All tokens (bytes, merged, special) and the merges between them."""
    symbols = byte_symbols()
    space, newline = symbols[ord(" ")], symbols[ord("\n")]
    words = list(dict.fromkeys(WORDS.read_text(encoding="ascii").split()))
    if any(word != word.lower() for word in words):
        raise ValueError(f"{WORDS}: a word with a capital would break the promise on answers tokenised anew")
    # No runs of spaces: before a capital, pre-tokenising gives up the last space of a run.
    merges = learn_merges([newline * 2, *(form for word in words for form in (space + word, word))])
    tokens = [*symbols, *("".join(pair) for pair in merges)]
    return (*dict.fromkeys(tokens), *SPECIALS), tuple(merges)


def weights(tokens: tuple[str, ...], kind: Kind = "llama") -> dict[str, npt.NDArray[np.float32]]:
    """Random weights; hidden dimension 0 is constant and only the output layer reads it."""
    rng = np.random.default_rng(SEED)

    def random(rows: int, columns: int, scale: float = 1.0) -> npt.NDArray[np.float32]:
        return np.asarray(rng.standard_normal((rows, columns)) * (scale / np.sqrt(columns)), dtype=np.float32)

    embedding = random(len(tokens), WIDTH, scale=np.sqrt(WIDTH))
    embedding[:, 0] = np.sqrt(WIDTH)
    output = random(len(tokens), WIDTH, scale=4.0)
    output[:, 0] = -PUSH
    output[[tokens.index(letter) for letter in CAPITALS], 0] = 0
    head = WIDTH if kind == "lfm2" else HEAD
    tensors = {
        "token_embd.weight": embedding,
        f"{'token_embd' if kind == 'lfm2' else 'output'}_norm.weight": np.ones(WIDTH, np.float32),
        "output.weight": output,
    }
    for layer in range(layers(kind)):
        attention_out = random(WIDTH, head, scale=8.0)
        feed_forward_out = random(WIDTH, FEED_FORWARD)
        attention_out[0] = feed_forward_out[0] = 0
        block = {
            "attn_norm": np.ones(WIDTH, np.float32),
            "attn_q": random(head, WIDTH, scale=SHARPNESS),
            "attn_k": random(head, WIDTH, scale=SHARPNESS),
            "attn_v": random(head, WIDTH),
            "attn_output": attention_out,
            "ffn_norm": np.ones(WIDTH, np.float32),
            "ffn_gate": random(FEED_FORWARD, WIDTH),
            "ffn_up": random(FEED_FORWARD, WIDTH),
            "ffn_down": feed_forward_out,
        }
        if kind != "llama":
            block |= {name: np.ones(head, np.float32) for name in ("attn_q_norm", "attn_k_norm")}
        if kind == "gemma3":
            block |= {name: np.ones(WIDTH, np.float32) for name in ("post_attention_norm", "post_ffw_norm")}
        if kind == "lfm2" and layer == HYBRID_LAYERS - 1:
            convolution_out = random(WIDTH, WIDTH)
            convolution_out[0] = 0
            block = {name: tensor for name, tensor in block.items() if name.startswith("ffn") or name == "attn_norm"}
            block |= {
                "shortconv.in_proj": random(3 * WIDTH, WIDTH),
                "shortconv.conv": random(WIDTH, CONVOLUTION),
                "shortconv.out_proj": convolution_out,
            }
        tensors |= {f"blk.{layer}.{name}.weight": tensor for name, tensor in block.items()}
    return tensors


def layers(kind: Kind) -> int:
    return {"llama": LAYERS, "gemma3": WINDOWED_LAYERS, "lfm2": HYBRID_LAYERS}[kind]


def write(path: Path, window: int = 0, *, gaps: bool = False, hybrid: bool = False) -> None:
    """Write a model to `path`, the same bytes each time; `window`: tokens of its sliding window, 0: full attention;
    `gaps`: with the control tokens that /infill needs; `hybrid`: with a layer that keeps a state."""
    kind: Kind = "gemma3" if window else "lfm2" if hybrid else "llama"
    head = WIDTH if hybrid else HEAD
    tokens, merges = vocabulary()
    specials = (*SPECIALS, *(GAPS if gaps else ()))
    tokens += specials[len(SPECIALS) :]
    writer = gguf.GGUFWriter(path, kind)
    writer.add_name("toki tiny test model")
    if window:
        writer.add_sliding_window(window)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(layers(kind))
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(1)
    writer.add_head_count_kv([1, 0] if hybrid else 1)
    if hybrid:
        writer.add_shortconv_l_cache(CONVOLUTION)
    writer.add_key_length(head)
    writer.add_value_length(head)
    writer.add_rope_dimension_count(head)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(list(tokens))
    writer.add_token_types(
        [gguf.TokenType.CONTROL if token in specials else gguf.TokenType.NORMAL for token in tokens],
    )
    writer.add_token_merges([" ".join(pair) for pair in merges])
    bos, _, end_of_turn, end_of_text = (tokens.index(token) for token in SPECIALS)
    writer.add_bos_token_id(bos)
    writer.add_eos_token_id(end_of_turn)
    writer.add_pad_token_id(end_of_text)
    writer.add_add_bos_token(True)
    writer.add_chat_template(CHAT_TEMPLATE)
    _finish(writer, weights(tokens, kind))


def write_projector(path: Path) -> None:
    """Write what makes the model with full attention take images (llama.cpp's projector "mlp", as of LLaVA 1.5)."""
    rng = np.random.default_rng(SEED)

    def random(*shape: int) -> npt.NDArray[np.float32]:
        return np.asarray(rng.standard_normal(shape) * 0.3, np.float32)

    writer = gguf.GGUFWriter(path, "clip")
    writer.add_bool("clip.has_vision_encoder", True)
    writer.add_string("clip.projector_type", "mlp")
    writer.add_bool("clip.use_gelu", True)
    sizes = {
        "image_size": IMAGE,
        "patch_size": PATCH,
        "embedding_length": VISION_WIDTH,
        "feed_forward_length": VISION_WIDTH,
        "block_count": LEAST_BLOCKS,
        "projection_dim": WIDTH,
        "attention.head_count": 1,
    }
    for name, size in sizes.items():
        writer.add_uint32(f"clip.vision.{name}", size)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-5)
    for name in ("image_mean", "image_std"):
        writer.add_array(f"clip.vision.{name}", [0.5, 0.5, 0.5])

    tensors = {
        "v.class_embd": random(VISION_WIDTH),
        "v.patch_embd.weight": random(VISION_WIDTH, 3, PATCH, PATCH),
        "v.position_embd.weight": random((IMAGE // PATCH) ** 2 + 1, VISION_WIDTH),
    }
    squares = ["attn_q", "attn_k", "attn_v", "attn_out", "ffn_up", "ffn_down"]
    layers = {f"v.blk.{block}.{name}": VISION_WIDTH for block in range(LEAST_BLOCKS) for name in squares}
    for name, rows in {**layers, "mm.0": WIDTH}.items():
        tensors |= {f"{name}.weight": random(rows, VISION_WIDTH), f"{name}.bias": random(rows)}
    tensors |= {"mm.2.weight": random(WIDTH, WIDTH), "mm.2.bias": random(WIDTH)}
    norms = [f"v.blk.{block}.{name}" for block in range(LEAST_BLOCKS) for name in ("ln1", "ln2")]
    for name in ("v.pre_ln", *norms):
        tensors |= {f"{name}.weight": np.ones(VISION_WIDTH, np.float32), f"{name}.bias": random(VISION_WIDTH)}
    _finish(writer, tensors)


def write_adapter(path: Path, seed: int = SEED) -> None:
    """Write a LoRA adapter for the model with full attention: it changes which tokens are attended to."""
    rng = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", RANK)
    shapes = {"lora_a": (RANK, WIDTH), "lora_b": (HEAD, RANK)}
    _finish(
        writer,
        {
            f"blk.0.{name}.weight.{part}": np.asarray(rng.standard_normal(shape), np.float32)
            for name in ("attn_q", "attn_k")
            for part, shape in shapes.items()
        },
    )


def _finish(writer: gguf.GGUFWriter, tensors: dict[str, npt.NDArray[np.float32]]) -> None:
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def fingerprint() -> str:
    """Changes whenever the model may: part of the cached file's name."""
    digest = hashlib.blake2b(digest_size=4)
    for part in (Path(__file__), WORDS):
        digest.update(part.read_bytes())
    return digest.hexdigest()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python scripts/tiny_model.py PATH.gguf")
    write(Path(sys.argv[1]))
