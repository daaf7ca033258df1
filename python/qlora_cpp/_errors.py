"""Exceptions of qlora_cpp."""


class QLoRAError(Exception):
    """Base of the exceptions that the library raises. The message says what, where and what to do."""


class Error(QLoRAError, ValueError):
    """The arguments, files or data are wrong. Nothing was changed."""


class RunError(QLoRAError, RuntimeError):
    """The work failed while it ran: a full disk, an I/O error, a run that diverged."""


class OutOfMemoryError(QLoRAError, MemoryError):
    """The run does not fit in the memory that is free or allowed. Nothing was changed."""


# __module__ is what tracebacks print.
for _class in (QLoRAError, Error, RunError, OutOfMemoryError):
    _class.__module__ = "qlora_cpp"
