"""The type stubs name what the module has, and everything has a docstring."""

import ast
import pathlib

import qlora_cpp as q


def names_of(body):
    return {node.name for node in body if isinstance(node, (ast.FunctionDef, ast.ClassDef))} | {
        node.target.id for node in body if isinstance(node, ast.AnnAssign)}


def is_error(name):
    return issubclass(getattr(q, name), q.QLoRAError)


def test_stubs_match_the_module():
    stubs = ast.parse(pathlib.Path(q.__file__).with_name("__init__.pyi").read_text()).body
    public = [node for node in stubs if getattr(node, "name", "").startswith("_") is False]
    assert names_of(public) - {"__version__"} == set(q.__all__)
    for node in public:
        if isinstance(node, ast.ClassDef) and not is_error(node.name):
            members = {name for name in vars(getattr(q, node.name)) if not name.startswith("_")}
            declared = {name for name in names_of(node.body) if not name.startswith("_")}
            assert declared == members, node.name
        elif isinstance(node, ast.FunctionDef):
            arguments = node.args.args + node.args.kwonlyargs
            signature = getattr(q, node.name).__doc__.split("\n\n")[0]
            for argument in arguments:
                assert f"{argument.arg}:" in signature, (node.name, argument.arg)


def test_everything_is_documented():
    for name in q.__all__:
        value = getattr(q, name)
        if callable(value):
            # pybind11 puts the signature first; the text follows.
            assert len(value.__doc__.strip().split("\n", 1)[-1]) > 20, name
        if isinstance(value, type) and not is_error(name):
            for member, what in vars(value).items():
                if member.startswith("_"):
                    continue
                doc = getattr(what, "__func__", what).__doc__ or ""
                text = doc.split("\n", 1)[-1] if doc.startswith(member + "(") else doc
                assert text.strip(), (name, member)
