"""What is wrong with the arguments of a call of the compiled module."""

import ast
import re

from ._errors import Error

_SIGNATURE = re.compile(r"^    \d+\. [\w.]*\((.*)\)(?: -> .*)?$", re.MULTILINE)
_KINDS = {"int": "an integer", "float": "a number", "str": "a text", "bool": "True or False",
          "dict": "a dict", "PathLike": "a path", "Iterable": "an iterable"}
_METHODS = {"int": "__index__", "float": "__float__", "bool": "__bool__", "Iterable": "__iter__",
            "PathLike": "__fspath__"}


# What other versions of the binding library call these.
_SAME = {"list": "List", "Sequence": "List", "SupportsInt": "int", "SupportsIndex": "int",
         "SupportsFloat": "float", "Dict": "dict"}


def _word(annotation):
    """ "Context" of qlora_cpp._core.Context."""
    word = annotation.attr if isinstance(annotation, ast.Attribute) else getattr(annotation, "id", "")
    return _SAME.get(word, word)


def _items(annotation):
    inner = annotation.slice
    return inner.elts if isinstance(inner, ast.Tuple) else [inner]


def _kind(annotation):
    """ "an integer", "integers", "an NF4Tensor"."""
    if isinstance(annotation, ast.Subscript):
        words = [_kind(item) for item in _items(annotation)]
        if _word(annotation.value) == "dict":
            return "a dict"
        if _word(annotation.value) == "List":
            return "a sequence of " + words[0].removeprefix("an ").removeprefix("a ") + "s"
        return words[0]
    word = _word(annotation)
    return _KINDS.get(word) or ("an " if word[:1] in "AEIOUN" else "a ") + word


def _fits(annotation, value):
    if isinstance(annotation, ast.Subscript):
        word, items = _word(annotation.value), _items(annotation)
        if word == "dict":
            return isinstance(value, dict)
        if word == "List":
            return (hasattr(value, "__len__") and hasattr(value, "__iter__")
                    and not isinstance(value, (str, bytes))
                    and all(_fits(items[0], item) for item in value))
        return (word == "Optional" and value is None) or any(_fits(item, value) for item in items)
    word = _word(annotation)
    if word == "str":
        return isinstance(value, (str, bytes))
    if word == "PathLike":
        return isinstance(value, (str, bytes)) or hasattr(value, "__fspath__")
    if word == "dict":
        return isinstance(value, dict)
    if word == "int":
        return hasattr(value, "__index__")
    if word in _METHODS:
        return hasattr(value, _METHODS[word]) or (word == "float" and hasattr(value, "__index__"))
    # A class of the module; others, and "object", take what they are given.
    names = {base.__name__ for base in type(value).__mro__}
    return not isinstance(annotation, ast.Attribute) or word == "ndarray" or word in names


def _default(arguments, index):
    """The default of a positional argument, as a node; None without one."""
    after = index - (len(arguments.args) - len(arguments.defaults))
    return arguments.defaults[after] if after >= 0 else None


def _wrong(arguments, given, keywords):
    """The sentence about the first mistake of a call by one signature, or None."""
    positional, named = arguments.args, arguments.kwonlyargs
    known = {argument.arg: argument for argument in positional + named}
    if len(given) > len(positional):
        more = " without a name" if named else ""
        most, found = (len(some) - ("self" in known) for some in (positional, given))
        return f"expected at most {most} argument{'s' * (most != 1)}{more}, found {found}"
    values = dict(zip((argument.arg for argument in positional), given))
    for name in keywords:
        if name not in known:
            names = ", ".join(n for n in known if n != "self" and not n.startswith("arg"))
            return f"no argument is called '{name}'; there are: {names}"
        if name in values:
            return f"{name} is given twice"
    values.update(keywords)
    for index, argument in enumerate(positional):
        if argument.arg not in values and _default(arguments, index) is None:
            return f"{argument.arg} is missing"
    for name, argument in known.items():
        if name in values and not _fits(argument.annotation, values[name]):
            if values[name] is None and _is_none(arguments, argument):
                continue
            # Of calls that the package makes itself, where the name says nothing.
            place = "" if name.startswith("arg") else f"{name}: "
            return f"{place}expected {_kind(argument.annotation)}, found {type(values[name]).__name__}"
    return None


def _is_none(arguments, argument):
    """True when None is the default."""
    if argument in arguments.kwonlyargs:
        default = arguments.kw_defaults[arguments.kwonlyargs.index(argument)]
    else:
        default = _default(arguments, arguments.args.index(argument))
    return isinstance(default, ast.Constant) and default.value is None


def _large(given):
    """The first whole number of a call that no 64 bits hold, or None."""
    for value in given:
        for item in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(item, int) and not -2 ** 63 <= item < 2 ** 64:
                return item
    return None


def _negative(arguments, given, keywords):
    """The first whole number below 0, where none may be: the sentence, or None."""
    values = dict(zip((argument.arg for argument in arguments.args), given), **keywords)
    for name, value in values.items():
        if isinstance(value, int) and value < 0:
            return f"{name}: expected 0 or more, found {value}"
    return None


def explain(error, given, keywords):
    """The exception to raise in place of `error`, a TypeError of the compiled module.

    given, keywords: the arguments of the call.
    """
    text = str(error)
    if " arguments. The following argument types are supported:" not in text:
        return error
    head, _, rest = text.partition("(): incompatible ")
    if rest.startswith("constructor"):
        head = head if head != "__init__" else type(given[0]).__name__
        given = given[1:]
    signatures = [ast.parse(f"def f({signature}): 0").body[0].args
                  for signature in _SIGNATURE.findall(rest.partition("\n\nInvoked with")[0])]
    # Of two forms, the one whose first argument fits.
    arguments = next((a for a in signatures if not given or not a.args
                      or _fits(a.args[0].annotation, given[0])), signatures[0])
    wrong = _wrong(arguments, given, keywords)
    if wrong is not None:
        return TypeError(f"{head}(): {wrong}")
    large = _large([*given, *keywords.values()])
    if large is not None:
        return Error(f"{head}(): {large} is too large for a number of 64 bits")
    return Error(f"{head}(): " + (_negative(arguments, given, keywords)
                                  or "an argument has a value that it cannot have"))


def refuse_init(self, *_arguments, **_keywords):
    """Raises: the class makes its objects itself."""
    kind = type(self)
    makers = sorted(name for base in kind.__mro__ for name, value in vars(base).items()
                    if isinstance(value, staticmethod) and not name.startswith("_"))
    raise TypeError(f"{kind.__name__} is made by " + (
        " or ".join(f"{kind.__name__}.{name}()" for name in makers) if makers else "the library alone"))
