"""Writes a copy of a quantised GGUF model with plain half-precision weights.

A build that was compiled for a newer CPU dies of an illegal instruction in its kernels for quantised weights; those for
plain ones need less.
"""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

MADE_ANEW = {"general.architecture", "general.file_type", "general.quantization_version"}  # by the writer


def write(source: Path, target: Path) -> None:
    """Copy the model `source` to `target`: all metadata, tensors of two and more dimensions as float16, others as they
    are."""
    reader = gguf.GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(target, architecture)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    for field in reader.fields.values():
        if field.name in MADE_ANEW or field.name.startswith("GGUF."):
            continue
        kind = field.types[0]
        inner = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), kind, inner)
    for tensor in reader.tensors:
        plain = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        writer.add_tensor(tensor.name, plain.astype(np.float16) if plain.ndim > 1 else plain.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
