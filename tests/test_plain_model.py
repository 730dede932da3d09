"""A quantised model and its plain copy are the same model."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

import plain_model


def quantised(path: Path) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    writer.add_token_list(["a", "b", "ü"])
    writer.add_token_scores([0.0, -1.0, -2.5])
    writer.add_add_bos_token(True)
    rng = np.random.default_rng(1)
    for name, shape in (("blk.0.attn_q.weight", (4, 64)), ("output_norm.weight", (64,))):
        values = rng.normal(size=shape).astype(np.float32)
        kind = gguf.GGMLQuantizationType.Q8_0 if len(shape) > 1 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_plain_copy_says_the_same(tmp_path: Path) -> None:
    source, copy = tmp_path / "model-q8_0.gguf", tmp_path / "plain.gguf"
    quantised(source)
    plain_model.write(source, copy)
    before, after = gguf.GGUFReader(source), gguf.GGUFReader(copy)
    said = [
        {name: field.contents() for name, field in each.fields.items() if not name.startswith("GGUF.")}
        for each in (before, after)
    ]
    assert said[1] == said[0] | {"general.file_type": gguf.LlamaFileType.MOSTLY_F16}
    for one, other in zip(before.tensors, after.tensors, strict=True):
        assert (one.name, one.shape.tolist()) == (other.name, other.shape.tolist())
        wanted = gguf.quants.dequantize(one.data, one.tensor_type)
        np.testing.assert_allclose(gguf.quants.dequantize(other.data, other.tensor_type), wanted, rtol=1e-3)
    assert {tensor.tensor_type.name for tensor in after.tensors} == {"F16", "F32"}
