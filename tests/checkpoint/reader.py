"""A second, independent reader of safetensors (struct and json alone), and a writer for files of other tools."""
import json
import struct

SIZES = {"F32": 4, "F16": 2, "BF16": 2}


def read_tensors(path):
    """{name: (dtype, shape, bytes)}; every byte of the file must belong to one tensor."""
    with open(path, "rb") as file:
        data = file.read()
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8:8 + length])
    header.pop("__metadata__", None)
    tensors, end = {}, 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, stop = entry["data_offsets"]
        count = 1
        for extent in entry["shape"]:
            count *= extent
        assert begin == end and stop - begin == count * SIZES[entry["dtype"]], name
        end = stop
        tensors[name] = (entry["dtype"], entry["shape"], data[8 + length + begin:8 + length + stop])
    assert 8 + length + end == len(data), path
    return tensors


def floats(tensor):
    dtype, _, raw = tensor
    if dtype == "F32":
        return struct.unpack("<%df" % (len(raw) // 4), raw)
    if dtype == "F16":
        return struct.unpack("<%de" % (len(raw) // 2), raw)
    return struct.unpack("<%df" % (len(raw) // 2),
                         b"".join(b"\0\0" + raw[i:i + 2] for i in range(0, len(raw), 2)))


def convert(tensor, dtype):
    """The same tensor in another type; bf16 by cutting off."""
    values = floats(tensor)
    raw = struct.pack("<%df" % len(values), *values)
    if dtype == "F16":
        raw = struct.pack("<%de" % len(values), *values)
    elif dtype == "BF16":
        raw = b"".join(raw[i + 2:i + 4] for i in range(0, len(raw), 4))
    return dtype, tensor[1], raw


def write_tensors(path, tensors):
    header, end = {}, 0
    for name, (dtype, shape, raw) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + len(raw)]}
        end += len(raw)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, _, raw in tensors.values():
            file.write(raw)
