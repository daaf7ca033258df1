"""What the modules with the calls of other libraries have in common."""

import ast
import importlib
import inspect
import pathlib

import numpy as np
import pytest

import qlora_cpp as q
from other_names import normal
from qlora_cpp import nabla


MODULES = ("kizzasi", "nabla", "qlora_rs", "torchao")


def test_bfloat16_is_made_of_floats():
    x = normal(3, 5)
    bits = x.view(np.uint32).astype(np.uint64)
    expected = ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    np.testing.assert_array_equal(q.Tensor(x).bits(), expected)
    np.testing.assert_array_equal(q.Tensor(values=x.astype(np.float64)).bits(), expected)


def test_other_byte_orders_are_read():
    w = normal(8, 64)
    np.testing.assert_array_equal(nabla.quantize_nf4(w.astype(">f4"))["indices"],
                                  nabla.quantize_nf4(w)["indices"])


@pytest.mark.parametrize("name", MODULES)
def test_modules_are_documented_and_have_stubs(name):
    module = importlib.import_module("qlora_cpp." + name)
    assert module.__doc__ and sorted(module.__all__) == module.__all__
    body = ast.parse(pathlib.Path(module.__file__).with_suffix(".pyi").read_text()).body
    stubs = {node.name: node for node in body if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
    constants = {node.target.id for node in body if isinstance(node, ast.AnnAssign)}
    assert set(stubs) | constants == set(module.__all__)

    def compare(stub, function, where):
        if not isinstance(stub, ast.FunctionDef):
            return
        names = [argument.arg for argument in stub.args.args + stub.args.kwonlyargs]
        assert names == list(inspect.signature(function).parameters), where

    for key, stub in stubs.items():
        value = getattr(module, key)
        assert value.__doc__, key
        if isinstance(stub, ast.FunctionDef):
            compare(stub, value, key)
            continue
        members = {m: v for m, v in vars(value).items() if not m.startswith("_")}
        fields = set(getattr(value, "__dataclass_fields__", ()))
        declared = {getattr(node, "name", None) or node.target.id for node in stub.body}
        attributes = {node.target.id for node in stub.body if isinstance(node, ast.AnnAssign)}
        # Attributes of an object are declared in the stub alone.
        assert {m for m in declared if not m.startswith("_")} - attributes == set(members) - fields
        assert fields <= attributes, key
        for node in stub.body:
            if not isinstance(node, ast.FunctionDef) or node.name not in members:
                continue
            what = members[node.name]
            what = what.fget if isinstance(what, property) else getattr(what, "__func__", what)
            assert what.__doc__, (key, node.name)
            compare(node, what, (key, node.name))
