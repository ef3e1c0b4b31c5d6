"""Writes estimators as skops 0.11 does (protocol 2), for tests: that library need not be here."""

import io
import json
import zipfile

import numpy as np


def node(value, archive):
    kind = {"__class__": type(value).__name__, "__module__": type(value).__module__}
    if isinstance(value, np.ndarray | np.generic):
        name = f"{id(value)}.npy"
        if value.dtype == object:
            content = [node(item, archive) for item in value.tolist()]
            shape = node(value.shape, archive)
            return {**kind, "__loader__": "NdArrayNode", "type": "json", "content": content,
                    "shape": shape}  # fmt: skip
        stream = io.BytesIO()
        np.save(stream, value, allow_pickle=False)
        archive.writestr(name, stream.getvalue())
        return {**kind, "__loader__": "NdArrayNode", "type": "numpy", "file": name}
    if isinstance(value, dict):
        content = {key: node(item, archive) for key, item in value.items()}
        types = {"__class__": "list", "__loader__": "ListNode", "content": []}
        return {**kind, "__loader__": "DictNode", "content": content, "key_types": types}
    if isinstance(value, list | tuple):
        content = [node(item, archive) for item in value]
        loader = "ListNode" if isinstance(value, list) else "TupleNode"
        return {**kind, "__loader__": loader, "content": content}
    if hasattr(value, "__getstate__") and hasattr(value, "get_params"):
        content = node(dict(value.__getstate__()), archive)
        return {**kind, "__loader__": "ObjectNode", "content": content}
    if not isinstance(value, str | bool | int | float | type(None)):
        return {**kind, "__loader__": "ReduceNode"}  # a solver's own objects
    return {"__class__": "str", "__module__": "builtins", "__loader__": "JsonNode",
            "content": json.dumps(value), "is_json": True}  # fmt: skip


def write_skops(path, estimator):
    with zipfile.ZipFile(path, "w") as archive:
        schema = node(estimator, archive) | {"protocol": 2, "_skops_version": "0.11.0"}
        archive.writestr("schema.json", json.dumps(schema))
