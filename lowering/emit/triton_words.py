"""Functions and signs of tile expressions in Triton's words."""

from gnomon.lowering.emit import triton_helpers

DTYPES = {
    "f16": "tl.float16",
    "f32": "tl.float32",
    "f64": "tl.float64",
    "i32": "tl.int32",
    "i64": "tl.int64",
    "bool": "tl.int1",
}
WHOLE = ("bool", "i32", "i64")
NARROW = ("io", "f16")
"""Types that arithmetic is not done in."""
CALLS = {
    "abs": "tl.abs",
    "cdiv": "tl.cdiv",
    "cos": "tl.cos",
    "exp": "tl.exp",
    "exp2": "tl.exp2",
    "log": "tl.log",
    "log2": "tl.log2",
    "maximum": "tl.maximum",
    "minimum": "tl.minimum",
    "rsqrt": "tl.rsqrt",
    "sigmoid": "tl.sigmoid",
    "sin": "tl.sin",
    "sqrt": "tl.sqrt",
    "where": "tl.where",
}
REAL = {"cos", "exp", "exp2", "log", "log2", "rsqrt", "sigmoid", "sin", "sqrt", "power"}
REAL |= triton_helpers.NAMES - {"floor_div", "floor_mod", "square"}
INFIX = {
    **{sign: sign for sign in ("+", "-", "*", "/", "<", "<=", ">", ">=", "==", "!=", "<<", ">>")},
    "and": "&",
    "or": "|",
}
TURNED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "==", "!=": "!="}
"""Comparisons seen from the other side: a number stands on the right."""
